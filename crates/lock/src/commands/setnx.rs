//! Commands of the `SET NX` lock.

use std::time::Duration;

use crate::config::millis;
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::scripts::script;

script!(RELEASE = "setnx_release.lua");

impl CommandConnection {
    /// `SET key token NX PX lease`. `true`: acquired.
    ///
    /// SET NX is not idempotent: when an earlier sending did set the key, the second finds it set.
    /// So a refusal of the second is compared with the own token.
    pub(crate) async fn setnx_acquire(
        &self,
        key: &str,
        token: &str,
        lease: Duration,
    ) -> Result<bool, Failure> {
        let mut set = redis::cmd("SET");
        set.arg(key)
            .arg(token)
            .arg("NX")
            .arg("PX")
            .arg(millis(lease));
        self.bounded(async |mut c, resent| {
            let set: Option<String> = set.query_async(&mut c).await?;
            if set.is_some() || !resent {
                return Ok(set.is_some());
            }
            let now: Option<String> = redis::cmd("GET").arg(key).query_async(&mut c).await?;
            Ok(now.as_deref() == Some(token))
        })
        .await
    }

    /// Delete the key if its value is `token`. `true`: deleted, or it may have been.
    pub(crate) async fn setnx_release(&self, key: &str, token: &str) -> Result<bool, Failure> {
        let mut call = RELEASE.key(key);
        call.arg(token);
        self.bounded(async |mut c, resent| {
            let deleted: bool = call.invoke_async(&mut c).await?;
            Ok(deleted || resent)
        })
        .await
    }
}
