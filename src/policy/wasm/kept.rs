//! What a policy says of itself, and what it became under its settings, kept beside the compiled code.
//!
//! Both are functions of the component, the memory it may have and the settings, which is what makes them worth
//! keeping: a start that finds them runs nothing of the policy but one trial. What is found was written by this
//! program (see [`super::cache`]); what cannot be read is made anew.

use serde_json::{from_slice, to_vec};
use wasmtime::component::Component;

use crate::model::{Bucket, Phase};
use crate::policy::{Description, Limits, spec};

use super::engine::Shared;

/// The length that stands before the buckets.
const LENGTH_BYTES: usize = 4;
/// Name, version, covers, concerns, phases, codes and the settings' schema.
type Written = (String, String, Vec<String>, Vec<String>, Vec<String>, Vec<String>, String);

/// A policy that starts out configured.
pub(super) struct Kept {
    pub(super) component: Component,
    pub(super) buckets: Vec<Bucket>,
}

impl Shared {
    /// Returns what a policy said of itself when it was loaded before.
    pub(super) fn kept_description(&self, component: &spec::Component, limits: Limits) -> Option<Description> {
        let cache = self.cache.as_ref()?;
        let entry = cache.get(&cache.name("description", &of(component, &memory(limits))))?;
        let (name, version, covers, concerns, phases, codes, settings_schema) =
            from_slice::<Written>(entry.body()).ok()?;
        let phases = phases.iter().map(|word| phase(word)).collect::<Option<_>>()?;
        Some(Description { name, version, covers, concerns, phases, codes, settings_schema })
    }

    /// Keeps what a policy says of itself.
    pub(super) fn keep_description(&self, component: &spec::Component, limits: Limits, description: &Description) {
        let Some(cache) = &self.cache else { return };
        let Description { name, version, covers, concerns, phases, codes, settings_schema } = description;
        let phases: Vec<&str> = phases.iter().map(|phase| phase.as_str()).collect();
        let written = to_vec(&(name, version, covers, concerns, phases, codes, settings_schema));
        if let Ok(written) = written {
            // What cannot be kept is asked for again next time.
            cache.put(&cache.name("description", &of(component, &memory(limits))), &[&written]).unwrap_or_default();
        }
    }

    /// Returns what a policy became under these settings when it was loaded before.
    pub(super) fn kept(&self, component: &spec::Component, limits: Limits, settings: &str) -> Option<Kept> {
        let cache = self.cache.as_ref()?;
        let entry = cache.get(&configured(cache, component, limits, settings))?;
        let (length, rest) = entry.body().split_first_chunk::<LENGTH_BYTES>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let buckets = from_slice::<Vec<(String, u32, u32, u64)>>(rest.get(..length)?).ok()?;
        let bucket = |(name, burst, per_interval, interval_ms)| Bucket { name, burst, per_interval, interval_ms };
        let component = entry.component(&self.engine, LENGTH_BYTES + length)?;
        Some(Kept { component, buckets: buckets.into_iter().map(bucket).collect() })
    }

    /// Keeps what a policy became under these settings.
    pub(super) fn keep(&self, component: &spec::Component, limits: Limits, settings: &str, kept: &Kept) {
        let Some(cache) = &self.cache else { return };
        let bucket = |bucket: &Bucket| (bucket.name.clone(), bucket.burst, bucket.per_interval, bucket.interval_ms);
        let buckets = to_vec(&kept.buckets.iter().map(bucket).collect::<Vec<_>>());
        let (Ok(buckets), Ok(code)) = (buckets, kept.component.serialize()) else { return };
        let Ok(length) = u32::try_from(buckets.len()) else { return };
        let name = configured(cache, component, limits, settings);
        // What cannot be kept is made again next time.
        cache.put(&name, &[&length.to_be_bytes(), &buckets, &code]).unwrap_or_default();
    }
}

fn configured(cache: &super::cache::Cache, component: &spec::Component, limits: Limits, settings: &str) -> String {
    let memory = memory(limits);
    let [component, memory] = of(component, &memory);
    cache.name("configured", &[component, memory, settings.as_bytes()])
}

/// What a description is made from.
fn of<'a>(component: &'a spec::Component, memory: &'a [u8]) -> [&'a [u8]; 2] {
    [component.sha256().as_bytes(), memory]
}

/// The memory a policy may have, which it can see.
fn memory(limits: Limits) -> [u8; 8] {
    (limits.memory_bytes as u64).to_be_bytes()
}

fn phase(word: &str) -> Option<Phase> {
    [Phase::Visible, Phase::Before, Phase::After].into_iter().find(|phase| phase.as_str() == word)
}
