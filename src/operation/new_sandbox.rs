//! What the operations share that make a sandbox: the demands that they meet, and what they check, ask and apply.

use std::collections::BTreeMap;

use super::arguments::Whole;
use crate::admission::{Effective, Grant};
use crate::model::{Code, Failure, Limit, ObligationKind, Requested};
use crate::sandbox::{CreateRequest, bounds};

/// Demands of policies that whoever makes a sandbox makes true.
pub(super) const MEETS: &[ObligationKind] = &[
    ObligationKind::MaxTtlMinutes,
    ObligationKind::MaxLiveSandboxes,
    ObligationKind::MaxDatabaseBytes,
    ObligationKind::RequireLabel,
    ObligationKind::AddLabel,
];

/// The arguments of a sandbox that is to be made, as a call gave them; what an operation does not take is left out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewSandbox<'a> {
    pub(super) name_hint: Option<&'a str>,
    pub(super) ttl_minutes: Option<Whole>,
    pub(super) owner: Option<&'a str>,
    pub(super) labels: Option<&'a BTreeMap<String, String>>,
    pub(super) extensions: Option<&'a [String]>,
    pub(super) template_name: Option<&'a str>,
    pub(super) idempotency_key: Option<&'a str>,
}

impl NewSandbox<'_> {
    /// Finds fault with them.
    pub(super) fn check(&self) -> Result<(), Failure> {
        ttl_minutes(self.ttl_minutes)?;
        bounds::check_text("nameHint", self.name_hint)?;
        bounds::check_text("owner", self.owner)?;
        bounds::check_text("idempotencyKey", self.idempotency_key)?;
        check_labels(self.labels)?;
        if let Some(name) = self.template_name {
            bounds::check_template_name(name)?;
        }
        bounds::check_extension_names(self.extensions.unwrap_or_default())
    }

    /// Returns what policies see of them.
    pub(super) fn requested(&self) -> Requested {
        Requested {
            ttl_minutes: self.ttl_minutes.and_then(|ttl| ttl.within(0, u64::MAX)),
            labels: pairs(self.labels),
            extensions: self.extensions.unwrap_or_default().to_vec(),
            ..Requested::default()
        }
    }

    /// Returns what the core is asked for.
    pub(super) fn request(&self, grant: &Grant) -> Result<CreateRequest, Failure> {
        Ok(CreateRequest {
            profile: grant.profile.clone().unwrap_or_default(),
            name_hint: self.name_hint.map(str::to_owned),
            ttl_minutes: ttl_minutes(self.ttl_minutes)?,
            labels: pairs(self.labels),
            extensions: self.extensions.unwrap_or_default().to_vec(),
            template: self.template_name.map(str::to_owned),
            idempotency: None,
        })
    }
}

/// Applies what policies demand of a sandbox to be made: its labels, and the life that was asked for.
pub(super) fn apply(
    labels: &mut Option<BTreeMap<String, String>>,
    ttl: Option<Whole>,
    effective: &Effective<'_>,
) -> Result<Vec<String>, Failure> {
    let mut all = labels.take().unwrap_or_default().into_iter().collect();
    effective.label(&mut all)?;
    *labels = Some(all.into_iter().collect());
    if let (Some(limit), Some(ttl)) = (&effective.obligations().max_ttl_minutes, ttl) {
        check_ttl(ttl, limit)?;
    }
    Ok(Vec::new())
}

/// Checks the labels of an input.
pub(super) fn check_labels(labels: Option<&BTreeMap<String, String>>) -> Result<(), Failure> {
    bounds::check_labels(&pairs(labels))
}

/// Refuses a time to live over a policy's limit.
pub(super) fn check_ttl(ttl: Whole, limit: &Limit) -> Result<(), Failure> {
    if ttl.within(1, limit.value).is_some() {
        return Ok(());
    }
    let message = format!(
        "ttl of {} minutes is not between 1 and {} minutes, the limit set by `{}`",
        ttl.shown(),
        limit.value,
        limit.set_by
    );
    Err(Failure::new(Code::InvalidTtl, message)
        .hint(format!("ask for {} minutes or less", limit.value))
        .allowed_minutes(limit.value))
}

/// Reads a time to live; its upper bound is the profile's to say.
pub(super) fn ttl_minutes(ttl: Option<Whole>) -> Result<Option<u64>, Failure> {
    let Some(ttl) = ttl else { return Ok(None) };
    match ttl.within(1, u64::from(u32::MAX)) {
        Some(minutes) => Ok(Some(minutes)),
        None => Err(Failure::new(Code::InvalidTtl, format!("ttl of {} minutes is out of range", ttl.shown()))
            .hint("ask for at least 1 minute and at most what the profile allows; see `list_profiles`")
            .allowed(["1 minute or more, up to the profile's limit"])),
    }
}

fn pairs(labels: Option<&BTreeMap<String, String>>) -> Vec<(String, String)> {
    labels.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect()
}
