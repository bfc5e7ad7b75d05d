//! Hash slots of a Redis Cluster: the slot of a command, and the table of slots and nodes.
//!
//! Source: <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>, "Key
//! distribution model" and "Hash tags"; <https://redis.io/docs/latest/commands/cluster-slots/>.

use std::collections::BTreeSet;

use redis::{Arg, Cmd, RedisResult, Value, from_redis_value};

use crate::address::Address;

const SLOTS: u16 = 16_384;

#[derive(Debug, Clone, Default)]
pub(crate) struct SlotTable {
    /// First and last slot and their master, in order.
    ranges: Vec<(u16, u16, Address)>,
    /// Masters and replicas.
    nodes: BTreeSet<Address>,
}

impl SlotTable {
    /// Parse a reply to CLUSTER SLOTS. `host` is the node that was asked: a node that does not know
    /// its own address leaves it out.
    pub(crate) fn parse(reply: Value, host: &str) -> RedisResult<Self> {
        let mut table = Self::default();
        for range in from_redis_value::<Vec<Vec<Value>>>(reply)? {
            let mut parts = range.into_iter();
            let (Some(first), Some(last)) = (parts.next(), parts.next()) else {
                continue;
            };
            let first = from_redis_value::<u16>(first)?;
            let last = from_redis_value::<u16>(last)?;
            for (rank, node) in parts.enumerate() {
                let node = from_redis_value::<Vec<Value>>(node)?;
                let [name, port, ..] = node.as_slice() else {
                    continue;
                };
                let name: Option<String> = from_redis_value(name.clone())?;
                let port: u16 = from_redis_value(port.clone())?;
                let host_name = name.filter(|name| !name.is_empty() && name != "?");
                let address =
                    Address::from(format!("{}:{port}", host_name.as_deref().unwrap_or(host)));
                if rank == 0 {
                    table.ranges.push((first, last, address.clone()));
                }
                table.nodes.insert(address);
            }
        }
        table.ranges.sort_by_key(|range| range.0);
        Ok(table)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn master(&self, slot: u16) -> Option<&Address> {
        let after = self.ranges.partition_point(|range| range.0 <= slot);
        let (_, last, address) = self.ranges.get(after.checked_sub(1)?)?;
        (slot <= *last).then_some(address)
    }

    /// Every master, once for each of its ranges.
    pub(crate) fn masters(&self) -> impl Iterator<Item = &Address> {
        self.ranges.iter().map(|range| &range.2)
    }

    pub(crate) fn nodes(&self) -> &BTreeSet<Address> {
        &self.nodes
    }
}

/// The slot of a key or a sharded channel.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let after_brace = &key[open + 1..];
        let close = after_brace.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &after_brace[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// The slot in which a command has to run; `None` if any node will do.
///
/// For a script that is the slot of its first key in KEYS. Otherwise it is the slot of the first argument,
/// or of the one after a subcommand or the word STREAMS. This is right for every command with a key that
/// this crate and the usual application send; the others are redirected.
pub(crate) fn slot_of(command: &Cmd) -> Option<u16> {
    let argument = |index| match command.args_iter().nth(index) {
        Some(Arg::Simple(bytes)) => Some(bytes),
        _ => None,
    };
    match argument(0)?.to_ascii_uppercase().as_slice() {
        b"PING" | b"SCRIPT" | b"CLUSTER" | b"TIME" | b"INFO" | b"WAIT" | b"PUBLISH" | b"SCAN"
        | b"CONFIG" | b"CLIENT" | b"ACL" | b"ROLE" | b"DBSIZE" | b"FLUSHALL" | b"FLUSHDB"
        | b"COMMAND" | b"LATENCY" => None,
        b"EVAL" | b"EVALSHA" | b"EVAL_RO" | b"EVALSHA_RO" => argument(2)
            .filter(|keys| *keys != b"0")
            .and_then(|_| argument(3)),
        b"XGROUP" | b"XINFO" | b"OBJECT" | b"MEMORY" => argument(2),
        b"XREAD" | b"XREADGROUP" => {
            let mut words = (1..).map_while(argument);
            words
                .find(|word| word.eq_ignore_ascii_case(b"STREAMS"))
                .and_then(|_| words.next())
        }
        _ => argument(1),
    }
    .map(slot)
}

/// CRC16 of the cluster specification (CRC-16/XMODEM: polynomial 0x1021, start 0).
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use redis::{Value, cmd};

    use super::{SlotTable, crc16, slot, slot_of};

    /// The check value and the examples of the cluster specification.
    #[test]
    fn slots_match_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % 16_384);
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{bar}{zap}"), slot(b"bar"));
        assert_eq!(slot(b"foo"), 12_182);
    }

    #[test]
    fn a_command_runs_in_the_slot_of_its_first_key() {
        let script = cmd("EVALSHA")
            .arg("hash")
            .arg(2)
            .arg("foo")
            .arg("channel:{foo}")
            .take();
        assert_eq!(slot_of(&script), Some(12_182));
        assert_eq!(slot_of(cmd("pttl").arg("foo")), Some(12_182));
        assert_eq!(slot_of(cmd("SCRIPT").arg("LOAD").arg("return 1")), None);
        assert_eq!(slot_of(&cmd("PING")), None);
        let read = cmd("XREADGROUP")
            .arg(&["GROUP", "g", "c", "STREAMS", "foo", ">"])
            .take();
        assert_eq!(slot_of(&read), Some(12_182));
        assert_eq!(
            slot_of(cmd("XGROUP").arg(&["CREATE", "foo", "g", "0"])),
            Some(12_182)
        );
        assert_eq!(slot_of(cmd("EVAL").arg(&["return 1", "0", "foo"])), None);
    }

    #[test]
    fn a_slot_table_finds_masters_and_unserved_slots() {
        let node =
            |name: &str, port| Value::Array(vec![Value::BulkString(name.into()), Value::Int(port)]);
        let range = |first, last, nodes: Vec<Value>| {
            Value::Array([vec![Value::Int(first), Value::Int(last)], nodes].concat())
        };
        let table = SlotTable::parse(
            Value::Array(vec![
                range(5000, 16_383, vec![node("", 2), node("c", 3)]),
                range(0, 99, vec![node("a", 1)]),
            ]),
            "asked",
        )
        .unwrap();
        assert_eq!(table.master(99).map(|a| &**a), Some("a:1"));
        assert_eq!(table.master(100), None);
        assert_eq!(table.master(16_383).map(|a| &**a), Some("asked:2"));
        assert_eq!(table.nodes().len(), 3);
    }
}
