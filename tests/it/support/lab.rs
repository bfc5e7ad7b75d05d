//! The lab of the load tool, before the instances of a stack.

use std::thread::JoinHandle;

use seckill_loadtest::lab::{self, LabOptions};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use workload::{Access, Environment};

use super::stack::Stack;

/// A lab that serves; stopped when dropped.
pub struct Lab {
    /// Where it listens.
    pub url: String,
    stop: CancellationToken,
    serving: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Lab {
    /// Serves on a free port, on a thread of its own, as in the program.
    pub async fn start(stack: &Stack, kill_command: Option<String>) -> Self {
        Lab::with_access(stack, stack.access(), kill_command).await
    }

    /// As [`Lab::start`], with other credentials than the stack's.
    pub async fn with_access(stack: &Stack, access: Access, kill_command: Option<String>) -> Self {
        let nodes = stack.urls();
        let nodes = nodes.iter().map(|url| url.parse().expect("an address"));
        let mut environment = Environment::silent(access, nodes.collect());
        environment.nodes = environment.targets.clone();
        environment.kill_command = kill_command;
        let bind = "127.0.0.1:0".parse().expect("an address");
        let listener = std::net::TcpListener::bind(bind).expect("a free port");
        listener.set_nonblocking(true).expect("for tokio");
        let url = format!("http://{}", listener.local_addr().expect("its port"));
        let options = LabOptions { environment, bind };
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let serving = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                lab::serve(options, TcpListener::from_std(listener)?, stopped).await
            })
        });
        Lab {
            url,
            stop,
            serving: Some(serving),
        }
    }

    /// Stops it, and waits for its end.
    pub async fn stop(&mut self) {
        self.stop.cancel();
        if let Some(serving) = self.serving.take() {
            let ended = tokio::task::spawn_blocking(|| serving.join()).await;
            ended.expect("a thread").expect("no panic").expect("served");
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
