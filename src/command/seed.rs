//! `seckill seed`: inserts sample shops and vouchers into an empty database, and signs users in for load tools.
//! Idempotent.

use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use chrono::{Duration, Utc};
use futures_util::{StreamExt, stream};

use crate::config::SeedConfig;
use crate::connection;
use crate::connection::redis::RoutedConnection;
use crate::error::Error;
use crate::idempotency::RecordedWrite;
use crate::keys::{Keys, record};
use crate::session::SharedSessions;
use crate::shop::store::ShopStore;
use crate::user::phone::Phone;
use crate::user::store::UserStore;
use crate::voucher::publish::{NewSale, NewVoucher};
use crate::voucher::store::VoucherStore;
use workload::ladder::Strategy;

/// Users signed in at a time.
const CONCURRENCY: usize = 64;

/// Runs the command.
pub async fn run(config: SeedConfig) -> anyhow::Result<()> {
    let database = connection::mysql::connect(
        &config.database.database_url,
        config.database.database_connections,
        config.database.database_timeout,
    )
    .await?;
    let server = config.redis.server()?;
    let redis = connection::redis::connect(server, config.redis.redis_timeout).await?;
    let redis = redis.commands();
    let keys = Keys::new(config.redis.key_style()?);
    record::record(&mut redis.clone(), keys.style()).await?;

    let [types, inserted] = ShopStore::new(database.clone()).seed().await?;
    println!("{types} shop types and {inserted} shops inserted");
    if inserted > 0 {
        let (ordinary, sale) =
            vouchers(&VoucherStore::new(database.clone()), redis.clone(), &keys).await?;
        println!("voucher {ordinary} published, and voucher {sale} as a flash sale");
    }
    if let Some(file) = &config.tokens_file {
        let users = UserStore::new(database);
        let sessions = SharedSessions::new(redis, keys.style());
        tokens(&users, &sessions, config.tokens, file).await?;
        println!("{} tokens written to {}", config.tokens, file.display());
    }
    Ok(())
}

/// One ordinary voucher, and one flash sale of 100 that is on for 30 days.
async fn vouchers(
    store: &VoucherStore,
    redis: RoutedConnection,
    keys: &Keys,
) -> Result<(i64, i64), Error> {
    let voucher = |title: &str, pay_value, actual_value| NewVoucher {
        shop_id: 1,
        title: title.to_owned(),
        sub_title: Some("周一至周日均可使用".to_owned()),
        rules: Some("全场通用；无需预约；不兑现、不找零".to_owned()),
        pay_value,
        actual_value,
        status: None,
    };
    let ordinary = voucher("50 元代金券", 4750, 5000);
    let ordinary = store.insert(RecordedWrite::new("voucher", None, &ordinary), &ordinary).await?;
    let sale = NewSale {
        stock: 100,
        begin: Utc::now() - Duration::hours(1),
        end: Utc::now() + Duration::days(30),
        strategy: Strategy::default(),
    };
    let flash = voucher("100 元秒杀代金券", 8000, 10000);
    let id = store
        .insert_sale(RecordedWrite::new("sale", None, &flash), &flash, &sale, async |id| {
            let set = keys.set_stock(id, sale.stock, sale.end.timestamp());
            Ok(set.query_async(&mut redis.clone()).await?)
        })
        .await?;
    Ok((ordinary, id))
}

/// Signs in users 19900000000, 19900000001, … and writes their tokens.
async fn tokens(
    users: &UserStore,
    sessions: &SharedSessions,
    count: u32,
    file: &Path,
) -> anyhow::Result<()> {
    // A token is as good as a password, so only the file's owner may read it.
    let out = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(file)
        .with_context(|| format!("cannot write {}", file.display()))?;
    let mut out = BufWriter::new(out);
    let tokens = stream::iter(0..count).map(|n| async move {
        let phone = Phone::parse(&format!("199{n:08}"))
            .ok_or_else(|| Error::Internal(format!("no phone number for user {n}")))?;
        sessions.create(&users.find_or_register(&phone).await?).await
    });
    let mut tokens = tokens.buffer_unordered(CONCURRENCY);
    while let Some(token) = tokens.next().await {
        writeln!(out, "{}", token?.as_str())?;
    }
    out.flush().context("cannot write the tokens")
}
