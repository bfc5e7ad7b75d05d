//! What a row of the table says of a strategy.

/// A text in both languages of the project: English, then Simplified Chinese.
pub type Text = [&'static str; 2];

/// Whether a violation can happen under a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// It never happens.
    Never,
    /// It never happens as long as this condition is met.
    NeverWhile(Text),
    /// It can happen; the law tests (`tests/it/law.rs`) hold a purchase where it does.
    Possible,
    /// It can happen, and the demonstration (`loadtest ladder`, `./dev demo`) insists on showing it, too.
    Shown,
}

impl Guarantee {
    /// Whether the violation can happen.
    pub const fn can_break(self) -> bool {
        matches!(self, Self::Possible | Self::Shown)
    }
}

/// The row of one strategy.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name on the wire, in metrics and in `tb_seckill_voucher.strategy`.
    pub name: &'static str,
    /// How it sells, in one sentence.
    pub idea: Text,
    /// Why it holds, or what can go wrong.
    pub why: Text,
    /// What is learnt from two requests of one buyer that meet under it: why both got an order, where it is
    /// [unsafe](super::Strategy::is_unsafe), else why only one did.
    pub moral: Text,
    /// More orders than stock.
    pub oversell: Guarantee,
    /// A second order of one user, with one instance running and with several.
    pub second_order: [Guarantee; 2],
}
