//! Commands to a Redis Cluster: each goes to the node that serves its slot, and redirects are followed.
//!
//! A command is sent again only when it is known not to have been executed (MOVED, ASK, TRYAGAIN, a
//! refused connection).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};

use crate::address::Address;
use crate::cluster::Cluster;
use crate::node::NodeConnection;
use crate::slots::slot_of;

/// How many times one command may be sent to another node, because its slot has moved or its node is
/// gone. Each time the command is known not to have been executed.
const MAX_REDIRECTS: usize = 5;

/// How many times a command is repeated while its slot is being moved, with some of its keys on either
/// node (TRYAGAIN), and the pause before each time.
const MAX_TRY_AGAIN: usize = 20;
const TRY_AGAIN_PAUSE: Duration = Duration::from_millis(20);

/// The handle through which one call sends its commands.
#[derive(Clone)]
pub(crate) struct ClusterLink {
    cluster: Arc<Cluster>,
    /// The node of the last command. Commands without a key go there too: SCRIPT LOAD has to reach
    /// the node on which the script was missing.
    last: Option<Address>,
}

impl ClusterLink {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        Self {
            cluster,
            last: None,
        }
    }

    pub(crate) async fn command(&mut self, command: &Cmd) -> RedisResult<Value> {
        let mut pipeline = redis::pipe();
        pipeline.add_command(command.clone());
        let cluster = self.cluster.clone();
        let mut replies = cluster
            .limited(self.send(slot_of(command), &pipeline, (0, 1)))
            .await?;
        Ok(replies.pop().unwrap_or(Value::Nil))
    }

    /// Sends the commands of a pipeline. Returns `count` of the replies, from `offset` on, as
    /// [`ConnectionLike::req_packed_commands`] does.
    pub(crate) async fn pipeline(
        &mut self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let cluster = self.cluster.clone();
        cluster
            .limited(self.send_each(pipeline, (offset, count)))
            .await
    }

    /// Sends each command to the node of its slot; those of a transaction all to the node of the first.
    /// Only what was redirected is sent again.
    async fn send_each(
        &mut self,
        pipeline: &Pipeline,
        wanted: (usize, usize),
    ) -> RedisResult<Vec<Value>> {
        let slots: Vec<Option<u16>> = pipeline.cmd_iter().map(slot_of).collect();
        let first = slots.iter().flatten().next().copied();
        let has_several_slots = slots.iter().flatten().any(|slot| Some(*slot) != first);
        let is_transaction = pipeline.is_transaction();
        if is_transaction && has_several_slots {
            return Err((ErrorKind::Client, "a transaction has keys in several slots").into());
        }
        if !has_several_slots {
            let replies = self.send(first, pipeline, wanted).await?;
            let sent = pipeline.cmd_iter().collect();
            return if is_transaction {
                Ok(replies)
            } else {
                self.follow(sent, replies).await
            };
        }
        let mut groups: BTreeMap<Option<u16>, (Vec<usize>, Pipeline)> = BTreeMap::new();
        for ((index, command), slot) in pipeline.cmd_iter().enumerate().zip(slots) {
            let group = groups.entry(slot).or_default();
            group.0.push(index);
            group.1.add_command(command.clone());
        }
        let sending = groups.iter().map(async |(slot, (indices, group))| {
            let mut link = self.clone();
            let replies = link.send(*slot, group, (0, indices.len())).await?;
            link.follow(group.cmd_iter().collect(), replies).await
        });
        let mut replies = vec![Value::Nil; pipeline.len()];
        for ((indices, _), answers) in groups.values().zip(join_all(sending).await) {
            for (index, answer) in indices.iter().zip(answers.map_err(partly)?) {
                replies[*index] = answer;
            }
        }
        Ok(replies)
    }

    /// Sends those commands of a pipeline again that were redirected; the others were executed.
    async fn follow(
        &mut self,
        sent: Vec<&Cmd>,
        mut replies: Vec<Value>,
    ) -> RedisResult<Vec<Value>> {
        for (reply, command) in replies.iter_mut().zip(sent) {
            if is_redirect(reply) {
                *reply = self.command(command).await.map_err(partly)?;
            }
        }
        Ok(replies)
    }

    /// Sends commands to the node of their slot, and follows redirects. `wanted` is the offset and the
    /// number of the replies to return.
    async fn send(
        &mut self,
        slot: Option<u16>,
        commands: &Pipeline,
        wanted: (usize, usize),
    ) -> RedisResult<Vec<Value>> {
        let cluster = self.cluster.clone();
        let mut next: Option<(Address, bool)> = None;
        let mut redirects = 0;
        let mut try_again = 0;
        loop {
            let (version, _) = cluster.current();
            let (address, asking) = match (next.take(), slot, &self.last) {
                (Some(next), ..) => next,
                (None, None, Some(last)) => (last.clone(), false),
                (None, ..) => (cluster.master(slot).await?, false),
            };
            self.last = Some(address.clone());
            let node = cluster.node(&address)?;
            let error = match deliver(node, commands, wanted, asking).await {
                Ok(replies) => return Ok(replies),
                Err(error) => error,
            };
            if error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain)
                && try_again < MAX_TRY_AGAIN
            {
                try_again += 1;
                tokio::time::sleep(TRY_AGAIN_PAUSE).await;
                // Its old node would redirect again.
                if asking {
                    next = Some((address, true));
                }
                continue;
            }
            redirects += 1;
            match error.kind() {
                _ if redirects > MAX_REDIRECTS => return Err(error),
                ErrorKind::Server(ServerErrorKind::Moved) => {
                    let Some(target) = target(&error, &address) else {
                        return Err(error);
                    };
                    // The new master has the newest table. If it does not answer, follow anyway.
                    if let Err(error) = cluster.refresh(version, Some(&target)).await {
                        tracing::debug!(%error, "no cluster node answers");
                    }
                    next = Some((target, false));
                }
                ErrorKind::Server(ServerErrorKind::Ask) => {
                    next = target(&error, &address).map(|target| (target, true));
                }
                // Nothing was sent. Follow if another node serves the slot by now.
                _ if error.is_connection_refusal() => {
                    cluster.mark_stale();
                    if slot.is_none() || cluster.master(slot).await? == address {
                        return Err(error);
                    }
                }
                ErrorKind::Server(ServerErrorKind::ClusterDown) | ErrorKind::Io => {
                    cluster.mark_stale();
                    return Err(error);
                }
                _ => return Err(error),
            }
        }
    }
}

/// Sends commands to a node; with `asking`, to the one that their slot is being moved to (ASKING).
async fn deliver(
    mut node: NodeConnection,
    commands: &Pipeline,
    (offset, count): (usize, usize),
    asking: bool,
) -> RedisResult<Vec<Value>> {
    let is_transaction = commands.is_transaction();
    let replies = if asking {
        let mut pipeline = redis::pipe();
        pipeline.cmd("ASKING");
        if is_transaction {
            pipeline.cmd("MULTI");
        }
        for command in commands.cmd_iter() {
            pipeline.add_command(command.clone());
        }
        if is_transaction {
            pipeline.cmd("EXEC");
        }
        node.req_packed_commands(&pipeline, offset + 1, count).await
    } else {
        node.req_packed_commands(commands, offset, count).await
    };
    let replies = replies.map_err(redirect_of)?;
    let executed = |(command, reply): (&Cmd, &Value)| {
        slot_of(command).is_some() && !matches!(reply, Value::ServerError(_))
    };
    if !is_transaction && commands.cmd_iter().zip(&replies).any(executed) {
        return Ok(replies);
    }
    // Either no command with a key succeeded, or this is a transaction: the first error stands for all replies.
    replies.into_iter().map(Value::extract_error).collect()
}

/// Whether a node has refused a command because of its slot.
fn is_redirect(reply: &Value) -> bool {
    let Value::ServerError(error) = reply else {
        return false;
    };
    matches!(
        error.kind(),
        Some(ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::TryAgain)
    )
}

/// The redirect because of which a transaction was not executed, or the error itself.
fn redirect_of(error: RedisError) -> RedisError {
    let first = match error.kind() {
        ErrorKind::Server(ServerErrorKind::ExecAbort) => error.clone().into_server_errors(),
        _ => None,
    };
    match first.as_deref() {
        Some([(_, cause), ..]) => cause.clone().into(),
        _ => error,
    }
}

/// The error of a pipeline of which other commands may have been executed.
fn partly(error: RedisError) -> RedisError {
    (
        ErrorKind::Io,
        "part of a pipeline failed",
        error.to_string(),
    )
        .into()
}

/// The node that a redirect names. A node that does not know its own host leaves it out.
fn target(redirect: &RedisError, from: &Address) -> Option<Address> {
    let (address, _) = redirect.redirect_node()?;
    if !address.starts_with(':') {
        return Some(address.into());
    }
    let (host, _) = from.rsplit_once(':')?;
    Some(format!("{host}{address}").into())
}
