//! A text that commits a purchase, and arrives after its deadline.

use seckill::error::Error;
use testkit::proxy::Mode;

use crate::decided::{Scene, place};
use crate::resilience::TAKES_STOCK;
use crate::support::eventually;

/// The instance is killed before it decides, and its text arrives after a look-up has said that there is no such order.
#[tokio::test]
async fn a_text_that_arrives_after_its_deadline_makes_no_order() {
    let scene = Scene::new().await;
    // Two seconds are left until its deadline, and twelve until a look-up is certain.
    let order = scene.order(1, 19);
    scene.proxy.set(Mode::HoldRequests(TAKES_STOCK));
    let store = scene.store.clone();
    let purchase = tokio::spawn(async move { place(&store, &order).await });
    eventually("the text is held", async || scene.proxy.held() == 1).await;
    purchase.abort();
    let looked_up = scene.direct.probe(order.id, 1).await;
    assert!(
        matches!(looked_up, Err(Error::Unavailable(_))),
        "it may still come: {looked_up:?}"
    );
    eventually("it is certain", async || {
        matches!(scene.direct.probe(order.id, 1).await, Ok(None))
    })
    .await;
    scene.proxy.pass_held().await;
    assert_eq!(scene.tables().await, (0, 5), "after a no");
}
