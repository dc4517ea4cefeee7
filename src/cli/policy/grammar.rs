//! The grammar of `pgsandbox policy …`.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgGroup, Command, ValueHint};

use super::loaded::COUNTS;
use crate::cli::arguments::Wanted;

/// The most evaluations of a component that can be asked for: each is remembered until the end.
const BENCH_COUNT_MAX: u64 = 10_000_000;
/// The most requests that can be asked for.
const FUZZ_COUNT_MAX: u64 = 1_000_000_000;
/// The longest time that can be asked for, in seconds.
const FUZZ_SECONDS_MAX: u64 = 86_400;

/// Returns the grammar.
pub(in crate::cli) fn command() -> Command {
    Command::new("policy")
        .about("Looks at the policies, and at a component that is to become one")
        .subcommand_required(true)
        .subcommand(list())
        .subcommand(reload())
        .subcommand(check())
        .subcommand(test())
        .subcommand(eval())
        .subcommand(bench())
        .subcommand(fuzz())
}

fn list() -> Command {
    Command::new("list")
        .about("Lists the policies as they load now, with mode, digest and what they cover, and which set each running server has")
        .arg(
            Arg::new(COUNTS)
                .long(COUNTS)
                .action(ArgAction::SetTrue)
                .help("Ask the running servers how often their candidates differed from the policies they are for"),
        )
}

fn reload() -> Command {
    Command::new("reload").about(
        "Has every running server of the state directory read its policies again; fails if one does not take them",
    )
}

fn check() -> Command {
    Command::new("check")
        .about("Looks at a component as a server does that loads it: size, imports, exports, memory, settings, codes, one evaluation of each operation")
        .after_help("Exit status: 0 nothing is wrong; 1 a server would refuse it, or it would refuse requests by failing; 2 nothing was begun.")
        .arg(path())
        .arg(settings())
}

fn test() -> Command {
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    Command::new("test")
        .about("Runs a component's cases in the host that a server has, each twice; says what came otherwise than expected")
        .after_help("Exit status: 0 every case passed; 1 one failed, or with --require-coverage a declared code was not met; 2 nothing was begun.")
        .arg(path())
        .arg(cases_file())
        .arg(settings())
        .arg(flag("fail-on-empty", "A file without cases ends with status 2"))
        .arg(flag("require-coverage", "A declared code that no case meets is a failure"))
        .arg(
            Arg::new("output")
                .long("output")
                .value_parser(["human", "json", "junit"])
                .help("How the result is printed; default: human, or json with --format json"),
        )
}

fn eval() -> Command {
    Command::new("eval")
        .about("Has a component decide one request, and prints the whole decision")
        .after_help("Exit status: 0 it decided, whatever it decided; 1 it failed, or refused the settings; 2 nothing was begun.")
        .arg(path())
        .arg(Arg::new("case").long("case").value_name("NAME").help("The case of this name"))
        .arg(
            Arg::new("request")
                .long("request")
                .value_name("FILE|-")
                .value_hint(ValueHint::FilePath)
                .help("A request in the form of a case, TOML or JSON; - is standard input"),
        )
        .group(ArgGroup::new("what").args(["case", "request"]).required(true))
        .arg(cases_file())
        .arg(settings())
        .arg(
            Arg::new("balances")
                .long("balances")
                .value_name("JSON")
                .help("Tokens left, an object of bucket and number, in the place of the request's"),
        )
}

fn bench() -> Command {
    Command::new("bench")
        .about("Measures a component over the requests of its cases, each evaluation in a fresh instance; with a baseline, both in turns")
        .arg(path())
        .arg(cases_file())
        .arg(
            Arg::new("baseline")
                .long("baseline")
                .value_name("PATH")
                .value_hint(ValueHint::AnyPath)
                .value_parser(clap::value_parser!(PathBuf))
                .help("A component to compare with, on the same requests"),
        )
        .arg(number("count", BENCH_COUNT_MAX, "Evaluations of each component, 1 to 10000000; default 10000"))
}

fn fuzz() -> Command {
    Command::new("fuzz")
        .about("Asks a component a great many odd requests: it must answer each within its bounds, the same way twice, with codes that it declares")
        .after_help("Exit status: 0 no rule was broken; 1 one was, and is printed as a case; 2 nothing was begun.")
        .arg(path())
        .arg(settings())
        .arg(number("seconds", FUZZ_SECONDS_MAX, "Time, 1 to 86400 seconds").conflicts_with("count"))
        .arg(number("count", FUZZ_COUNT_MAX, "Requests, 1 to 1000000000; default 10000"))
        .arg(
            Arg::new("seed")
                .long("seed")
                .value_name("N")
                .allow_negative_numbers(true)
                .value_parser(|text: &str| text.parse::<u64>().map_err(|_| Wanted::counted()))
                .help("What the requests are made from; the same seed gives the same ones"),
        )
        .arg(
            Arg::new("monotone")
                .long("monotone")
                .action(ArgAction::SetTrue)
                .help("The policy claims that adding a write never makes of a denial anything else"),
        )
}

fn path() -> Arg {
    Arg::new("path")
        .value_name("PATH")
        .required(true)
        .value_hint(ValueHint::AnyPath)
        .value_parser(clap::value_parser!(PathBuf))
        .help("A component, or a folder with one, its `cases.toml` and its `default.json`")
}

fn settings() -> Arg {
    Arg::new("settings")
        .long("settings")
        .value_name("JSON|@FILE")
        .help("The policy's settings, whole; default: the folder's `default.json`, else none")
}

fn cases_file() -> Arg {
    Arg::new("cases")
        .long("cases")
        .value_name("FILE")
        .value_hint(ValueHint::FilePath)
        .value_parser(clap::value_parser!(PathBuf))
        .help("The cases; default: the folder's `cases.toml`")
}

fn number(name: &'static str, most: u64, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("N")
        .allow_negative_numbers(true)
        .value_parser(move |text: &str| {
            text.parse::<u64>().ok().filter(|number| (1..=most).contains(number)).ok_or(Wanted::counted())
        })
        .help(help)
}
