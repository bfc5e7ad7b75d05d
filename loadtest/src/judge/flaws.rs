//! What broke, in the course's words: the flaw, an example with ids and times, the chapter that mends it, and the change as an
//! idea.

use std::collections::BTreeMap;

use strategies::Text;
use workload::buyers::Buyer;

use super::{options::Language, sales::Sale};

/// Something that a node must not do, in the order of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // each is described in its row
pub enum Flaw {
    Oversold,
    SecondOrder,
    SecondOrderAcrossNodes,
    Lost,
    LostInCrash,
    LeaseEnded,
    ForeignDelete,
    OnlyTheLock,
    Phantom,
    RepeatedId,
    Drift,
    FalseSoldOut,
    FalseDuplicate,
    Malformed,
    Uncached,
    Breakdown,
    Penetration,
    Stale,
}

/// What a learner is told of a flaw.
pub struct Row {
    pub flaw: Flaw,
    /// The checker's name for it; empty where the checker does not look for it.
    invariant: &'static str,
    /// The course's term.
    pub term: Text,
    /// The course's chapter that mends it.
    pub chapter: &'static str,
    /// The change.
    pub idea: Text,
}

/// Every flaw.
#[rustfmt::skip] // A text is a line.
pub const ROWS: [Row; 18] = [
    Row {
        flaw: Flaw::Oversold,
        invariant: "oversold",
        term: ["超卖 (oversell): more orders than stock", "超卖：订单比库存多"],
        chapter: "优惠券秒杀 · 乐观锁解决超卖",
        idea: [
            "Let one statement check and take: UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id = ? AND stock > 0; if \
             it changed no row, refuse.",
            "让一条语句同时检查和扣减：UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id = ? AND stock > 0；影响行数为 0 就拒绝。",
        ],
    },
    Row {
        flaw: Flaw::SecondOrder,
        invariant: "duplicates",
        term: ["一人一单 (one order per user): a second order", "一人一单：同一用户有第二单"],
        chapter: "优惠券秒杀 · 一人一单",
        idea: [
            "Between the check and the insert another request of the user passes the same check. Hold a lock per user, synchronized \
             (userId.toString().intern()), around the call of the @Transactional method through its proxy, so that it is released \
             after the commit. A unique index on (user_id, voucher_id) has the last word.",
            "检查和插入之间，同一用户的另一个请求也通过了检查。按用户加锁 synchronized (userId.toString().intern())，包住对 @Transactional \
             方法的调用（用代理对象），提交之后才释放；再用唯一索引 (user_id, voucher_id) 兜底。",
        ],
    },
    Row {
        flaw: Flaw::SecondOrderAcrossNodes,
        invariant: "duplicates",
        term: ["一人一单 (one order per user): a second order, only with two nodes", "一人一单：单节点没问题，两个节点就有第二单"],
        chapter: "分布式锁 · Redisson",
        idea: [
            "A lock in one JVM does not know the other's. Take it where both see it: redissonClient.getLock(\"lock:order:\" + \
             userId).tryLock(), unlock in finally, after the commit; the watchdog (看门狗) renews it meanwhile. A unique index has the \
             last word.",
            "一个 JVM 的锁，另一个 JVM 看不到。把锁放到两边都看得见的地方：redissonClient.getLock(\"lock:order:\" + userId).tryLock()，提交之后在 \
             finally 里 unlock，看门狗会自动续期；再用唯一索引兜底。",
        ],
    },
    Row {
        flaw: Flaw::Lost,
        invariant: "lost",
        term: ["丢单 (lost order): a yes, and no such order of that user", "丢单：返回了订单 id，却没有这个用户的订单"],
        chapter: "异步秒杀 · Stream 消息队列与 pending-list",
        idea: [
            "If orders are written later, an exception must not lose them: Stream with a consumer group, XACK after the commit, and the \
             pending-list read again after an exception. If they are written at once, answer after the commit.",
            "如果订单稍后才写入，异常不能丢消息：用 Stream 消费者组，提交之后才 XACK，异常之后重读 pending-list。如果当场写入，就在提交之后再返回。",
        ],
    },
    Row {
        flaw: Flaw::LostInCrash,
        invariant: "lost",
        term: ["宕机丢单 (lost in a crash): a yes before kill -9, and no order after the restart", "宕机丢单：kill -9 之前返回了成功，重启之后没有订单"],
        chapter: "异步秒杀 · 阻塞队列的问题：内存限制与数据安全",
        idea: [
            "A queue in the JVM dies with it. Put the order into Redis in the script that admits (XADD stream.orders), read it in a \
             consumer group, XACK after the commit, and begin with the pending-list (ID 0) after a start.",
            "JVM 里的阻塞队列随进程一起消失。在判断资格的 Lua 脚本里 XADD stream.orders，用消费者组读取，提交之后 XACK，启动后先处理 pending-list（ID 为 0）。",
        ],
    },
    Row {
        flaw: Flaw::LeaseEnded,
        invariant: "",
        term: ["没有看门狗 (no watchdog): the lock's lease ended in mid-work", "没有看门狗：业务没做完，锁先到期"],
        chapter: "分布式锁 · Redisson（看门狗）",
        idea: [
            "A fixed lease ends while a slow purchase still works, and the next request comes in. Let the holder renew it: \
             lock.tryLock() without a leaseTime starts Redisson's watchdog.",
            "固定的租期会在业务没做完时到期，下一个请求就进来了。让持有者续期：lock.tryLock() 不传 leaseTime，Redisson 的看门狗就会续期。",
        ],
    },
    Row {
        flaw: Flaw::ForeignDelete,
        invariant: "",
        term: ["误删 (foreign delete): a release deleted a lock that another held", "误删：释放时删掉了别人的锁"],
        chapter: "分布式锁 · 误删与 Lua 脚本",
        idea: [
            "Store who holds it (UUID + thread id), and let one Lua script compare and DEL; to compare first and DEL later is two \
             steps. Redisson does it.",
            "把持有者（UUID + 线程 id）存进锁里，用一个 Lua 脚本完成判断和 DEL；先判断、再删除是两步，不是原子的。Redisson 已经这样做。",
        ],
    },
    Row {
        flaw: Flaw::OnlyTheLock,
        invariant: "",
        term: ["锁丢了就有第二单 (only the lock): the lock's key was deleted, and there was a second order", "锁丢了就有第二单：锁的 key 被删，同一用户就下了两单"],
        chapter: "一人一单 · 唯一索引兜底；分布式锁 · 主从一致性",
        idea: [
            "Redis may lose a lock, for example in a failover. ALTER TABLE tb_voucher_order ADD UNIQUE (user_id, voucher_id), and \
             treat DuplicateKeyException as 不能重复下单.",
            "Redis 可能丢锁，例如主从切换时。ALTER TABLE tb_voucher_order ADD UNIQUE (user_id, voucher_id)，把 DuplicateKeyException 当作不能重复下单。",
        ],
    },
    Row {
        flaw: Flaw::Phantom,
        invariant: "phantom",
        term: ["失败却有订单 (phantom): every reply was a no, and there is an order", "失败却有订单：每次都返回失败，库里却有订单"],
        chapter: "优惠券秒杀 · 一人一单（事务）",
        idea: [
            "A refusal must undo what it did: check, stock and order in one @Transactional method, called through its proxy, which \
             throws (and does not return Result.fail) once something was changed.",
            "拒绝时要撤销已做的修改：检查、扣减、下单放在同一个 @Transactional 方法里，通过代理对象调用；改过数据之后要抛异常，而不是 return Result.fail。",
        ],
    },
    Row {
        flaw: Flaw::RepeatedId,
        invariant: "",
        term: ["订单 id 重复 (repeated id): two users or two sales were told one id", "订单 id 重复：两个用户或两场秒杀得到同一个 id"],
        chapter: "优惠券秒杀 · 全局唯一 ID",
        idea: [
            "Take the sequence from one counter that all nodes share: timestamp << 32 | INCR icr:order:yyyy:MM:dd.",
            "序列号取自所有节点共用的计数器：时间戳 << 32 | INCR icr:order:yyyy:MM:dd。",
        ],
    },
    Row {
        flaw: Flaw::Drift,
        invariant: "drift",
        term: ["库存对不上 (drift): what was on sale is not what was sold and what is left", "库存对不上：发放数 ≠ 已售 + 剩余"],
        chapter: "优惠券秒杀 · 下单（事务）",
        idea: [
            "Stock and order belong to one transaction: both are committed, or neither.",
            "扣库存和建订单要在同一个事务里：要么都提交，要么都回滚。",
        ],
    },
    Row {
        flaw: Flaw::FalseSoldOut,
        invariant: "false sold-out",
        term: ["有货却说没货 (false sold-out): 库存不足 was said, and stock is left", "有货却说没货：返回库存不足，库存却有剩"],
        chapter: "优惠券秒杀 · 乐观锁（成功率低）",
        idea: [
            "Who compares the stock with what was read loses against anybody who bought meanwhile. Ask for stock > 0 instead.",
            "拿库存和先前读到的值比较，只要有人先买就失败。把条件改成 stock > 0。",
        ],
    },
    Row {
        flaw: Flaw::FalseDuplicate,
        invariant: "false duplicate",
        term: ["没下单却说下过单 (false duplicate): 不能重复下单 was said to a user without an order", "没下单却说下过单：返回不能重复下单，用户却没有订单"],
        chapter: "异步秒杀 · Lua 脚本判断资格",
        idea: [
            "The mark that a user has ordered is set in one script with the place, and goes when the order fails.",
            "“已下单”的标记要和名额在同一个脚本里写；下单失败时要撤掉。",
        ],
    },
    Row {
        flaw: Flaw::Malformed,
        invariant: "malformed",
        term: ["成功却没有 id (malformed): a yes without an order id", "成功却没有 id：返回成功，data 里没有订单 id"],
        chapter: "优惠券秒杀 · 下单",
        idea: ["return Result.ok(orderId), a number or its digits.", "return Result.ok(orderId)：数字，或它的文本。"],
    },
    Row {
        flaw: Flaw::Uncached,
        invariant: "",
        term: ["没有缓存 (no cache): a shop that was just read was read from the database again", "没有缓存：刚读过的店铺，又去查数据库"],
        chapter: "商户查询缓存 · 添加 Redis 缓存",
        idea: [
            "Ask Redis first (GET cache:shop:{id}). Only if there is nothing, ask the database, and SET what it says, for 30 minutes.",
            "先查 Redis（GET cache:shop:{id}），没有才查数据库，查到后 SET 进 Redis，过期时间 30 分钟。",
        ],
    },
    Row {
        flaw: Flaw::Breakdown,
        invariant: "",
        term: ["缓存击穿 (breakdown): a hot key was gone, and its readers asked the database all together", "缓存击穿：热点 key 失效，读它的请求一起去查数据库"],
        chapter: "商户查询缓存 · 缓存击穿（互斥锁、逻辑过期）",
        idea: [
            "Let one request rebuild the value while the others wait. It takes SET lock:shop:{id} NX EX 10, looks into Redis once \
             more, loads, stores and releases the lock; the others sleep for 50 ms and look again. Or expire it logically: everybody \
             gets the old value while one thread rebuilds it.",
            "一个去重建，其他的等：SET lock:shop:{id} NX EX 10，拿到锁的先再查一次 Redis，没有才查库、写缓存；没拿到的睡 50 毫秒再查。或者用逻辑过期：先返回旧值，由一个线程去重建。",
        ],
    },
    Row {
        flaw: Flaw::Penetration,
        invariant: "",
        term: ["缓存穿透 (penetration): an id that does not exist asks the database every time", "缓存穿透：不存在的 id，每次都去查数据库"],
        chapter: "商户查询缓存 · 缓存穿透（缓存空对象、布隆过滤器）",
        idea: [
            "If the database has no such shop, SET cache:shop:{id} to \"\" for 2 minutes, and read \"\" as \"no such shop\". Or ask a \
             Bloom filter of all ids first.",
            "数据库里没有时，把 cache:shop:{id} 写成 \"\"，过期时间 2 分钟；读到 \"\" 就返回店铺不存在。或者先问装了全部 id 的布隆过滤器。",
        ],
    },
    Row {
        flaw: Flaw::Stale,
        invariant: "",
        term: ["缓存与数据库不一致 (stale): a shop was changed, and a read does not show it", "缓存与数据库不一致：店铺改了，读到的不是新值"],
        chapter: "商户查询缓存 · 缓存更新策略（双写一致）",
        idea: [
            "In PUT /shop change the row first, then DEL cache:shop:{id}. If the key is deleted first, any read in between brings the \
             old value back. Give every key a time to live, in case a DEL is lost. With logical expiry, write the new value instead.",
            "PUT /shop 里先改数据库，再 DEL cache:shop:{id}；先删的话，中间任何一次读都会把旧值写回去。每个 key 都设过期时间，万一 DEL 丢了还能兜底。用逻辑过期时，改成写入新值。",
        ],
    },
];

/// A flaw that was seen.
#[derive(Debug, Clone)]
pub struct Finding {
    /// What.
    pub flaw: Flaw,
    /// On how many nodes.
    pub nodes: usize,
    /// How often, over all sales.
    pub count: u64,
    /// In how many sales; 0 where none was needed.
    pub sales: usize,
    /// One of them: ids and times.
    pub example: Vec<String>,
}

/// What broke in these sales to these buyers, and what else was found, in the order of [`ROWS`].
pub fn find(
    sales: &[Sale],
    buyers: &[Buyer],
    others: impl IntoIterator<Item = Finding>,
) -> Vec<Finding> {
    let mut found: BTreeMap<(Flaw, usize), Finding> = BTreeMap::new();
    let breaks_on_one = sales
        .iter()
        .any(|sale| sale.nodes.len() == 1 && sale.report.verdict.duplicates > 0);
    for sale in sales {
        let nodes = sale.nodes.len();
        let verdict = &sale.report.verdict;
        let violations = verdict.violations();
        for Row {
            flaw, invariant, ..
        } in &ROWS
        {
            let is_of_these_nodes = match flaw {
                Flaw::SecondOrder => nodes == 1 || breaks_on_one,
                Flaw::SecondOrderAcrossNodes => nodes > 1 && !breaks_on_one,
                // The books of a sale that was oversold are off as well, and the stock of one whose books are off tells nothing.
                Flaw::Lost => !sale.is_restarted,
                Flaw::LostInCrash => sale.is_restarted,
                Flaw::Drift => verdict.oversold == 0,
                Flaw::FalseSoldOut => verdict.oversold == 0 && verdict.drift == 0,
                _ => true,
            };
            let violation = violations.iter().find(|(name, _)| name == invariant);
            let Some((_, count)) = violation.filter(|_| is_of_these_nodes) else {
                continue;
            };
            let finding = found.entry((*flaw, nodes)).or_insert_with(|| Finding {
                flaw: *flaw,
                nodes,
                count: 0,
                sales: 0,
                example: example(sale, invariant, buyers),
            });
            finding.count += count.unsigned_abs();
            finding.sales += 1;
        }
    }
    let repeated = find_repeated_ids(sales);
    let in_sales = found.into_values().chain(repeated);
    let mut findings: Vec<Finding> = in_sales.chain(others).collect();
    findings.sort_by_key(|finding| (finding.flaw, finding.nodes));
    findings
}

/// Ids that were told to two users, or in two sales.
fn find_repeated_ids(sales: &[Sale]) -> Option<Finding> {
    let mut owners = BTreeMap::new();
    let mut example = Vec::new();
    let mut count = 0;
    let mut nodes = 0;
    for sale in sales {
        let voucher = sale.report.voucher_id;
        for record in &sale.report.records {
            let Some(id) = record.observed.reply.success_id() else {
                continue;
            };
            let owner = (voucher, record.observed.user_id);
            let first = *owners.entry(id).or_insert(owner);
            if first != owner {
                count += 1;
                nodes = nodes.max(sale.nodes.len());
                if example.is_empty() {
                    let [first, owner] = [first, owner]
                        .map(|(voucher, user)| format!("user {user} on voucher {voucher}"));
                    example = vec![format!("order {id}: told to {first}, and to {owner}")];
                }
            }
        }
    }
    (count > 0).then_some(Finding {
        flaw: Flaw::RepeatedId,
        nodes,
        count,
        sales: 1,
        example,
    })
}

/// The books of the sale, and everything about one of the buyers to whom it happened.
fn example(sale: &Sale, invariant: &str, buyers: &[Buyer]) -> Vec<String> {
    let verdict = &sale.report.verdict;
    let mut lines = vec![format!(
        "voucher {}: {} on sale, {} orders, {} left",
        sale.report.voucher_id, verdict.issued, verdict.orders, verdict.stock_left
    )];
    let Some(user) = verdict.witnesses.get(invariant) else {
        return lines;
    };
    let rows = sale.report.snapshot.rows.iter();
    let rows: Vec<String> = rows
        .filter(|row| row.user_id == *user)
        .map(|row| row.id.to_string())
        .collect();
    let rows = if rows.is_empty() {
        "none".to_owned()
    } else {
        rows.join(", ")
    };
    lines.push(format!("user {user}: rows in tb_voucher_order: {rows}"));
    let buyer = buyers.iter().position(|buyer| buyer.user_id == *user);
    let mut records: Vec<_> = sale
        .report
        .records
        .iter()
        .filter(|record| record.observed.user_id == *user)
        .collect();
    records.sort_by_key(|record| record.sent);
    for record in records {
        let reply = &record.observed.reply;
        let id = reply.success_id().map(|id| format!(" {id}"));
        // As the generator spreads the attempts of a buyer.
        let node =
            (buyer.unwrap_or_default() + record.observed.attempt as usize) % sale.nodes.len();
        lines.push(format!(
            "  {:.3} s to {:.3} s  {}  {}{}",
            record.sent.as_secs_f64(),
            record.answered.as_secs_f64(),
            sale.nodes[node],
            reply.label(),
            id.unwrap_or_default()
        ));
    }
    lines
}

/// The verdict in words. `untried` says what was not tried, a sentence each. Without sales it is about the reads alone.
pub fn verdict(
    sales: &[Sale],
    are_reads_tried: bool,
    findings: &[Finding],
    untried: &[String],
    language: Language,
) -> String {
    let mut lines = Vec::new();
    if findings.is_empty() && sales.is_empty() && are_reads_tried {
        let text = [
            "Nothing broke in the reads of shops.",
            "查询店铺没有发现问题。",
        ];
        lines.push(language.pick(text).to_owned());
    }
    if findings.is_empty() && !sales.is_empty() {
        let requests: u64 = sales.iter().map(|sale| sale.report.requests).sum();
        let count = sales.len();
        lines.push(match language {
            Language::En => format!("Nothing broke in {count} sales with {requests} requests."),
            Language::Zh => format!("{count} 场秒杀、{requests} 个请求，没有发现问题。"),
        });
    }
    for finding in findings {
        lines.push(format!("✗ {}", finding.summary(language)));
        for line in &finding.example {
            lines.push(format!("    {line}"));
        }
        let Row { chapter, idea, .. } = finding.row();
        lines.push(format!("  → {chapter}: {}\n", language.pick(*idea)));
    }
    lines.extend_from_slice(untried);
    lines.join("\n")
}

impl Finding {
    /// What was seen how often, and where.
    pub fn summary(&self, language: Language) -> String {
        let Self {
            nodes,
            count,
            sales,
            ..
        } = self;
        let term = language.pick(self.row().term);
        if *sales == 0 {
            return term.to_owned();
        }
        match language {
            Language::En => {
                format!(
                    "{term}. Seen {count} times, in {sales} of the sales; {nodes} of the nodes sold"
                )
            }
            Language::Zh => format!("{term}。{sales} 场秒杀共 {count} 次，{nodes} 个节点参与"),
        }
    }

    /// What a learner is told of it.
    pub fn row(&self) -> &'static Row {
        let row = ROWS.iter().find(|row| row.flaw == self.flaw);
        row.expect("each flaw has a row")
    }
}
