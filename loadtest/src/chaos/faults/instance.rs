//! Faults of an instance of the service, by its index: ended, stopped, restarted.

use tokio::time::sleep;

use super::scene::Scene;
use workload::Error;

/// SIGKILL, then started again.
pub async fn kill(it: Scene<'_>, which: usize) -> Result<(), Error> {
    let mut instance = it.cluster.instances[which].lock().await;
    instance.kill();
    sleep(it.lasts).await;
    instance.restart().await
}

/// SIGSTOP, then SIGCONT.
pub async fn stop(it: Scene<'_>, which: usize) -> Result<(), Error> {
    it.cluster.instances[which].lock().await.pause(it.lasts).await
}

/// One after the other is asked to end (SIGTERM) and started again.
pub async fn roll(it: Scene<'_>) -> Result<(), Error> {
    for instance in &it.cluster.instances {
        let mut instance = instance.lock().await;
        instance.end().await?;
        instance.restart().await?;
        sleep(it.lasts).await;
    }
    Ok(())
}
