//! `seckill seed`: inserts sample shops and vouchers into an empty database, and signs users in for load tools.
//! Idempotent.

use std::fs::OpenOptions;
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use futures_util::{StreamExt, stream};

use crate::config::SeedConfig;
use crate::connection;
use crate::error::Error;
use crate::keys::record;
use crate::session::SharedSessions;
use crate::shop::store::ShopStore;
use crate::user::phone::Phone;
use crate::user::store::UserStore;
use crate::voucher::store::VoucherStore;

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
    let style = config.redis.key_style()?;
    record::record(&mut redis.clone(), style).await?;

    let [types, inserted] = ShopStore::new(database.clone()).seed().await?;
    println!("{types} shop types and {inserted} shops inserted");
    if inserted > 0 {
        VoucherStore::new(database.clone()).seed().await?;
        println!("a voucher and a flash sale inserted");
    }
    if let Some(file) = &config.tokens_file {
        let users = UserStore::new(database);
        let sessions = SharedSessions::new(redis, style);
        write_tokens(&users, &sessions, config.tokens, file).await?;
        println!("{} tokens written to {}", config.tokens, file.display());
    }
    Ok(())
}

/// Signs in users 19900000000, 19900000001, … and writes their tokens.
async fn write_tokens(
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
        sessions
            .create(&users.find_or_register(&phone).await?)
            .await
    });
    let mut tokens = tokens.buffer_unordered(CONCURRENCY);
    while let Some(token) = tokens.next().await {
        writeln!(out, "{}", token?.as_str())?;
    }
    out.flush().context("cannot write the tokens")
}
