//! What a judgement is asked for.

use std::{env, path::PathBuf};

use clap::{Args, ValueEnum};
use strategies::Text;
use workload::{Access, Target, live::Progress};

/// Options of a judgement.
#[derive(Debug, Clone, Args)]
pub struct JudgeOptions {
    /// Your node, such as http://127.0.0.1:8081; two, separated by a comma, are also judged together
    #[arg(long, required = true, value_delimiter = ',', value_name = "URL")]
    pub targets: Vec<Target>,
    #[command(flatten)]
    #[allow(missing_docs)] // A doc comment would become the help of the whole command.
    pub access: Access,
    /// A shell command that kills the first node with SIGKILL and starts it again, run in the middle of a sale: 'kill -9 $(lsof
    /// -ti tcp:8081 -s tcp:listen); java -jar hmdp.jar'
    #[arg(long, value_name = "COMMAND")]
    pub restart: Option<String>,
    /// Judge the reads of shops alone, for example before your node sells
    #[arg(long, conflicts_with = "restart")]
    pub reads_only: bool,
    /// Do not ask before a database that has orders in it
    #[arg(long)]
    pub yes: bool,
    /// The language of the verdict [default: that of LANG]
    #[arg(long = "lang", value_enum, value_name = "LANGUAGE")]
    pub language: Option<Language>,
    /// Write the verdict as one HTML file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// The strategy of the sales, where the node is one of this project
    #[arg(long, default_value = "", hide = true)]
    pub strategy: String,
    /// Whether progress is shown.
    #[arg(skip = Progress::Stderr)]
    pub progress: Progress,
}

impl JudgeOptions {
    /// The language of the verdict.
    pub fn language(&self) -> Language {
        self.language.unwrap_or_else(Language::of_environment)
    }
}

/// The language of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// English, with the course's terms
    En,
    /// Chinese
    Zh,
}

impl Language {
    /// That of `LC_ALL` or `LANG`.
    pub fn of_environment() -> Self {
        let names = ["LC_ALL", "LANG"].map(|name| env::var(name).unwrap_or_default());
        let is_chinese = names.iter().any(|name| name.starts_with("zh"));
        if is_chinese { Self::Zh } else { Self::En }
    }

    /// The text in this language.
    pub fn pick(self, text: Text) -> &'static str {
        text[self as usize]
    }
}
