//! Faults of an instance of the service, of the way to its servers, of their clocks, and lost replies to what an operator or
//! an owner of orders does.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use testkit::{clock, proxy::Mode};
use tokio::{sync::Mutex, time::sleep};

use crate::chaos::{
    changes::What,
    instance::pause,
    operator::Scene,
    test_cluster::ServerKind::{self, Database},
};

/// The shortest time for which replies to an operation get lost.
const SPELL: Duration = Duration::from_millis(250);
/// How long a server may take to see that its clock was stepped.
const CLOCK_SEEN_WITHIN: Duration = Duration::from_millis(1_100);

/// The longest time in which connections begin to be held. It is beyond the instances' time limits, so that what they send
/// again is held, too.
const LONGEST_HOLD: Duration = Duration::from_millis(1_200);

/// SIGKILL, then started again.
pub async fn kill(scene: Scene<'_>, which: usize) -> Result<()> {
    let mut instance = scene.cluster.instances[which].lock().await;
    instance.kill();
    sleep(scene.lasts).await;
    instance.restart().await
}

/// SIGSTOP, then SIGCONT.
pub async fn stop(scene: Scene<'_>, which: usize) -> Result<()> {
    let instance = scene.cluster.instances[which].lock().await;
    Ok(pause(instance.process()?, scene.lasts).await?)
}

/// The instances, one after the other, are asked to end (SIGTERM) and started again.
pub async fn roll(scene: Scene<'_>) -> Result<()> {
    for instance in &scene.cluster.instances {
        let mut instance = instance.lock().await;
        instance.end().await?;
        instance.restart().await?;
        sleep(scene.lasts).await;
    }
    Ok(())
}

/// Sets the proxies in front of a server to `mode` for a while; at the end they forward again.
pub async fn link(scene: Scene<'_>, kind: ServerKind, mode: Mode) -> Result<()> {
    scene.cluster.set_proxies(kind, mode);
    sleep(scene.lasts).await;
    scene.cluster.set_proxies(kind, Mode::Forward);
    Ok(())
}

/// All that is sent on the connections that are in use for a while reaches the server later, when the instances may have given
/// it up, closed these connections and gone on with others: a late copy of a command, of a statement, of a COMMIT.
pub async fn deliver_late(scene: Scene<'_>, kind: ServerKind) -> Result<()> {
    let hold = (scene.lasts / 3).min(LONGEST_HOLD);
    scene.cluster.set_proxies(kind, Mode::HoldBytes);
    sleep(hold).await;
    scene.cluster.set_proxies(kind, Mode::Forward);
    sleep(scene.lasts - hold).await;
    scene.cluster.pass_held(kind).await
}

/// A server's clock is stepped by so many seconds and, at the end, stepped back.
pub async fn step_clock(scene: Scene<'_>, kind: ServerKind, seconds: i32) -> Result<()> {
    step_while(&scene.cluster.clocks[kind as usize], seconds, scene.lasts).await
}

/// A server's clock is ahead for a moment. Then the instances are restarted: one that has seen the wrong time would give its
/// ids dates in the future until that time has come, and until then no look-up can say that such an order does not exist.
pub async fn step_clock_on(scene: Scene<'_>, kind: ServerKind, seconds: i32) -> Result<()> {
    step_clock(scene, kind, seconds).await?;
    sleep(CLOCK_SEEN_WITHIN).await;
    for instance in &scene.cluster.instances {
        let mut instance = instance.lock().await;
        instance.end().await?;
        instance.restart().await?;
    }
    Ok(())
}

/// An instance's clock is stepped, and at the end stepped back; an instance that is started meanwhile has the wrong clock as
/// well. At the end the instance is restarted: its ids never step back, and would go on from the wrong time.
pub async fn step_clock_of_instance(scene: Scene<'_>, which: usize, seconds: i32) -> Result<()> {
    step_while(&scene.cluster.instance_clocks[which], seconds, scene.lasts).await?;
    let mut instance = scene.cluster.instances[which].lock().await;
    instance.end().await?;
    instance.restart().await
}

/// Faults of one clock take turns.
async fn step_while(clock: &Mutex<PathBuf>, seconds: i32, lasts: Duration) -> Result<()> {
    let file = clock.lock().await;
    clock::step(&file, seconds)?;
    sleep(lasts).await;
    Ok(clock::step(&file, 0)?)
}

/// Does the operation while the database's replies to its COMMITs are lost, so that it is certainly hit. The operations of
/// every round are hit only if another fault happens to coincide with them.
pub async fn lose_replies(scene: Scene<'_>, operation: impl Future<Output = ()>) -> Result<()> {
    // Long enough for the first attempt of each operation; later attempts are to succeed.
    let lasts = scene.lasts + SPELL;
    let losing = link(Scene { lasts, ..scene }, Database, Mode::LoseCommitReply);
    let (lost, ()) = tokio::join!(losing, operation);
    lost
}

/// As [`lose_replies`], for payments or cancellations of existing orders.
pub async fn lose_replies_on(scene: Scene<'_>, what: What) -> Result<()> {
    let orders = scene.operator.orders().await;
    lose_replies(scene, scene.operator.change(&orders, what)).await
}
