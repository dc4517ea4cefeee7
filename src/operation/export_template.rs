//! Writes a template to a file, to be brought to another server or kept.

use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::arguments::Whole;
use super::list_templates::{Exported, PRIVACY};
use super::selector::ProfileSelector;
use super::{About, Ahead, Asks, Call, Done, Operation, Spec, Toolset};
use crate::admission::{Admissible, Permit};
use crate::model::{Code, Failure, Impact, ObligationKind, Requested};
use crate::sandbox::{ExportRequest, bounds};

/// How long a dump or a restore may take unless asked otherwise, and at most, in seconds.
const TIMEOUT_SECONDS_DEFAULT: u64 = 240;
const TIMEOUT_SECONDS_MAX: u64 = 600;

/// Arguments of `export_template`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExportTemplate {
    #[serde(flatten)]
    profile: ProfileSelector,
    /// The template, as `list_templates` shows it; the exported one has its name.
    template_name: String,
    /// Whether an exported template of that name gives way to this one; default false.
    replace: Option<bool>,
    /// Seconds it may take, from 1 to 600; default 240.
    timeout_seconds: Option<Whole>,
}

/// What was exported.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExportedTemplate {
    exported: Exported,
}

impl ExportTemplate {
    fn request(&self) -> Result<ExportRequest, Failure> {
        Ok(ExportRequest {
            name: self.template_name.clone(),
            replace: self.replace.unwrap_or(false),
            time: timeout(self.timeout_seconds)?,
        })
    }
}

/// Reads how long a dump or a restore may take.
pub(super) fn timeout(asked: Option<Whole>) -> Result<Duration, Failure> {
    let Some(asked) = asked else { return Ok(Duration::from_secs(TIMEOUT_SECONDS_DEFAULT)) };
    asked.within(1, TIMEOUT_SECONDS_MAX).map(Duration::from_secs).ok_or_else(|| {
        let text = format!("a timeout of {} seconds is not between 1 and {TIMEOUT_SECONDS_MAX}", asked.shown());
        Failure::new(Code::InvalidArguments, text)
    })
}

/// Returns what policies see of it.
pub(super) fn requested(asked: Option<Whole>) -> Requested {
    let seconds = asked.and_then(|seconds| seconds.within(0, TIMEOUT_SECONDS_MAX));
    Requested { timeout_ms: seconds.map(|seconds| seconds * 1000), ..Requested::default() }
}

impl Admissible for ExportTemplate {
    const MEETS: &'static [ObligationKind] = Self::SPEC.meets;
}

#[async_trait]
impl Operation for ExportTemplate {
    const SPEC: Spec = Spec {
        name: "export_template",
        title: "Export a template",
        help: "Writes a template of yours to a private file in the state directory, with a checksum and all that another server must \
               know of it. import_template makes a template of it again, also on a profile of a newer version, and also when the \
               template is gone. An operator can bring the file to another machine.",
        impact: Impact::Creates,
        meets: &[],
        toolset: Toolset::Copies,
        idempotent: false,
    };
    type Output = ExportedTemplate;

    fn check(&self) -> Result<(), Failure> {
        bounds::check_template_name(&self.template_name)?;
        timeout(self.timeout_seconds).map(drop)
    }

    fn asks(&self) -> Asks {
        let about = About::Profile((&self.profile).into());
        Asks { about, requested: requested(self.timeout_seconds), ..Asks::default() }
    }

    async fn foresee(&self, ahead: &Ahead<'_>) -> Result<Vec<String>, Failure> {
        ahead.core.foresee_export(ahead.grant, &self.request()?).await?;
        Ok(vec!["whether everything in the template can be dumped is known only when it is".to_owned()])
    }

    async fn run(permit: Permit<Self>, call: &Call) -> Result<Done<ExportedTemplate>, Failure> {
        let request = permit.input().request()?;
        let kept = call.core.export_template(&permit, request, call.progress.clone(), call.cancel.clone()).await?;
        let summary = format!("template `{}` is exported, {} bytes", kept.name, kept.bytes);
        let mut warnings = vec![PRIVACY.to_owned()];
        if !kept.manifest.left_out.is_empty() {
            warnings.push(format!("not in the file: {}", kept.manifest.left_out.join("; ")));
        }
        Ok(Done::new(summary, ExportedTemplate { exported: Exported::new(&kept) }).warn(warnings))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_timeout_is_taken_up_to_its_bound_and_no_further() {
        let ok = |seconds: serde_json::Value| {
            let input = json!({"templateName": "base", "timeoutSeconds": seconds});
            serde_json::from_value::<ExportTemplate>(input).unwrap().check().is_ok()
        };
        let found = [0, 1, TIMEOUT_SECONDS_MAX, TIMEOUT_SECONDS_MAX + 1].map(|seconds| ok(seconds.into()));
        assert_eq!(found, [false, true, true, false]);
        assert_eq!(timeout(None).unwrap(), Duration::from_secs(TIMEOUT_SECONDS_DEFAULT));
    }
}
