//! Limits how often calls of each impact may be made.
//!
//! For each impact that the settings name there is one token bucket of that name, kept by the host for each
//! principal; a call takes one token from the bucket of its impact, or as many as `costs` says for its operation. The
//! host takes tokens last of all, after every policy agreed. The policy never refuses by itself and answers for no
//! operation. Over the limit the host refuses with `rate_limited`, and says when to come again.
//!
//! | setting | meaning |
//! |---|---|
//! | `impacts` | impact → `burst` (tokens the bucket holds), `per_interval` (tokens gained in each interval), `interval_ms`; an impact that is not named is not limited |
//! | `costs` | operation → tokens that one call of it takes, 0 for none; 1 where nothing is said |

use std::collections::BTreeMap;

use pgsandbox_policy::{Bucket, Decision, Description, Impact, Policy, Problem, Problems, Request};

/// The longest interval that can be set: a day. Buckets live in memory; longer budgets are no rates.
const INTERVAL_MS_MAX: u64 = 86_400_000;

/// The settings.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    #[serde(default)]
    impacts: BTreeMap<String, Rate>,
    #[serde(default)]
    costs: BTreeMap<String, u32>,
}

/// How fast.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    burst: u32,
    per_interval: u32,
    interval_ms: u64,
}

/// The policy.
#[derive(Debug)]
pub struct RateLimit {
    limited: Vec<Impact>,
    costs: BTreeMap<String, u32>,
}

impl Policy for RateLimit {
    type Settings = Settings;

    fn describe() -> Description {
        Description::new("rate-limit", env!("CARGO_PKG_VERSION"), include_str!("../settings.schema.json"))
            .concerns(["*"])
    }

    fn configure(settings: Settings) -> Result<(Self, Vec<Bucket>), Vec<Problem>> {
        let mut problems = Problems::default();
        let mut limited = Vec::new();
        let mut buckets = Vec::new();
        for (word, rate) in settings.impacts {
            let path = format!("impacts.{word}");
            problems.check_range(&format!("{path}.burst"), rate.burst.into(), 1, u32::MAX.into());
            problems.check_range(&format!("{path}.per_interval"), rate.per_interval.into(), 1, u32::MAX.into());
            problems.check_range(&format!("{path}.interval_ms"), rate.interval_ms, 1, INTERVAL_MS_MAX);
            if let Some(impact) = problems.word(&path, &word, Impact::WORDS) {
                limited.push(impact);
            }
            buckets.push(Bucket {
                name: word,
                burst: rate.burst,
                per_interval: rate.per_interval,
                interval_ms: rate.interval_ms,
            });
        }
        let largest = buckets.iter().map(|bucket| bucket.burst).max().unwrap_or_default();
        for (operation, cost) in &settings.costs {
            if *cost > largest {
                problems.add(
                    format!("costs.{operation}"),
                    format!(
                        "{cost} tokens are more than the largest bucket holds ({largest}); such a call could never run"
                    ),
                );
            }
        }
        problems.done((Self { limited, costs: settings.costs }, buckets))
    }

    fn evaluate(&self, request: &Request) -> Decision {
        let cost = self.costs.get(&request.operation).copied().unwrap_or(1);
        if cost == 0 || !self.limited.contains(&request.impact) {
            return Decision::abstain();
        }
        Decision::abstain().charge(request.impact.as_str(), cost)
    }
}

pgsandbox_policy::export!(RateLimit);

#[cfg(test)]
mod tests {
    use pgsandbox_policy::{Policy as _, testing};

    use super::*;

    #[test]
    fn the_description_fits_the_settings() {
        testing::check_description::<RateLimit>(include_str!("../default.json"));
    }

    #[test]
    fn the_cases_come_out_as_expected() {
        testing::check_cases::<RateLimit>(include_str!("../cases.toml"), include_str!("../default.json"));
    }

    #[test]
    fn every_fault_is_reported() {
        let settings = r#"{"impacts":{"creates":{"burst":0,"per_interval":1,"interval_ms":0},
            "wrties":{"burst":1,"per_interval":1,"interval_ms":1}},"costs":{"run_sql":2}}"#;
        let paths: Vec<_> = testing::problems::<RateLimit>(settings).into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["impacts.creates.burst", "impacts.creates.interval_ms", "impacts.wrties", "costs.run_sql"]);
    }

    #[test]
    fn each_limited_impact_has_a_bucket() {
        let settings: Settings = Settings {
            impacts: BTreeMap::from([("reads".into(), Rate { burst: 2, per_interval: 1, interval_ms: 500 })]),
            costs: BTreeMap::new(),
        };
        let (_, buckets) = RateLimit::configure(settings).unwrap();
        assert_eq!(buckets, [Bucket { name: "reads".into(), burst: 2, per_interval: 1, interval_ms: 500 }]);
    }
}
