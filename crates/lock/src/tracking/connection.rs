//! One connection with client tracking. The server reports the first change of each key after it was
//! read on this connection; to hear of the next change, the key has to be read again.

use redis::{PushInfo, PushKind, RedisResult, Value, cmd, from_redis_value, pipe};
use redis_link::{PushConnection, Redis, Unusable};

/// A connection on which the keys that are read are tracked.
pub(super) struct TrackingConnection(PushConnection);

/// What has changed since it was read.
pub(super) enum Change {
    Keys(Vec<String>),
    /// Every key, perhaps: the data was flushed.
    All,
}

impl TrackingConnection {
    pub(super) async fn open(redis: &Redis, address: &str) -> Result<Self, Unusable> {
        let mut connection = redis.pushes(address).await?;
        cmd("CLIENT")
            .arg("TRACKING")
            .arg("ON")
            .exec_async(&mut connection.commands)
            .await?;
        Ok(Self(connection))
    }

    pub(super) async fn changed(&mut self) -> Result<Change, Unusable> {
        loop {
            if let PushInfo {
                kind: PushKind::Invalidate,
                mut data,
            } = self.0.next().await?
            {
                return Ok(match data.pop() {
                    Some(Value::Array(keys)) => {
                        let names = keys.into_iter().map(from_redis_value);
                        Change::Keys(names.filter_map(Result::ok).collect())
                    }
                    _ => Change::All,
                });
            }
        }
    }

    /// Which of the fields of each key exist; from now on the next change of the key is reported.
    pub(super) async fn read<'a>(
        &mut self,
        keys: impl Iterator<Item = (&'a str, Vec<String>)>,
    ) -> Result<Vec<RedisResult<Vec<bool>>>, Unusable> {
        let mut all = pipe();
        for (key, fields) in keys {
            all.cmd("HMGET").arg(key).arg(fields);
        }
        let replies: Vec<RedisResult<Vec<Value>>> = all
            .ignore_errors()
            .query_async(&mut self.0.commands)
            .await?;
        let exist = |values: Vec<Value>| values.iter().map(|value| *value != Value::Nil).collect();
        Ok(replies.into_iter().map(|reply| reply.map(exist)).collect())
    }

    pub(super) async fn ping(&mut self) -> Result<(), Unusable> {
        Ok(cmd("PING").exec_async(&mut self.0.commands).await?)
    }
}
