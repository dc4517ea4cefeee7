//! Approvals: what another principal has agreed to, once, for exactly one request.
//!
//! A request is known by its digest: of who asks, what for, with which arguments and of which source. What is asked, and
//! each approval, is sealed for the row it stands in, so that neither can be made, moved or changed without the key. Who
//! approves is another subject than who asks, and is in the group when it approves. Which requests need approval is the
//! policies' to say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::core::require;
use super::shown_request::{ASKED_BYTES_MAX, Cut, cut, shown_request};
use super::{Core, Profile, State};
use crate::admission::Permit;
use crate::model::{Code, Context, Failure, Identity, Impact, Principal, SandboxId, Secret, Timestamp};
use crate::secret::Sealed;
use crate::store::{Find, GivenApproval, NewRequest, Noted, WaitingRequest};

/// What a request is sealed as.
const REQUEST_FIELD: &str = "approval request";
/// What an approval is sealed as.
const APPROVAL_FIELD: &str = "approval";
/// Hexadecimal digits of a digest.
const DIGEST_CHARS: usize = 64;

/// A request whose approval is demanded.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The facts on which it was decided.
    pub context: &'a Context,
    /// The arguments, as they came.
    pub arguments: &'a Map<String, Value>,
    /// The groups that must approve, all of them.
    pub groups: &'a BTreeSet<String>,
    /// Who wants that, and what was said.
    pub demanded: &'a Demanded,
}

/// Which policies demand approval, and what they and others said of the request.
#[derive(Clone, Debug, Default)]
pub struct Demanded {
    /// The policies, by the group whose approval they demand.
    pub policies: BTreeMap<String, BTreeSet<String>>,
    /// Warnings: the policy and its words.
    pub said: Vec<(String, String)>,
}

/// What is known of a request's approvals.
#[derive(Clone, Debug, Default)]
pub struct Approved {
    /// The request's digest, as people and programs write it.
    pub digest: String,
    /// The groups that have approved.
    pub groups: BTreeSet<String>,
    /// What stands for them.
    found: Option<(String, Uuid)>,
}

/// A request that waits for approval, as an approver is shown it.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The request's digest.
    pub digest: String,
    /// The profile on whose metadata it waits.
    pub profile: String,
    /// Who asks and what for.
    pub what: Value,
    /// What of it is cut.
    pub cut: Vec<Cut>,
    /// Groups that must approve.
    pub groups: Vec<String>,
    /// Groups that have.
    pub approved: Vec<String>,
    /// Until when it can be made, where all of them have.
    pub usable_until: Option<Timestamp>,
    /// Since when it waits.
    pub asked_at: Timestamp,
    /// Until when it waits.
    pub expires_at: Timestamp,
    /// Whether the caller may approve it.
    pub yours: bool,
}

impl Waiting {
    /// Returns whether every group has approved, so that it can be made.
    pub fn is_approved(&self) -> bool {
        self.groups.iter().all(|group| self.approved.contains(group))
    }
}

/// An approval that was given.
#[derive(Clone, Debug)]
pub struct Approval {
    /// The request, with the groups in whose name it was approved in [`Waiting::approved`].
    pub request: Waiting,
    /// Until when it can be used.
    pub usable_until: Timestamp,
}

/// A request as it was sealed.
struct Opened {
    subject: String,
    groups: Vec<String>,
    what: Value,
}

impl Core {
    /// Says which of the demanded groups have approved a request. Looks; takes and notes nothing.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn approved(&self, asked: &Asked<'_>) -> Result<Approved, Failure> {
        let digest = self.request_digest(asked);
        let mut approved = Approved { digest: hex(&digest), ..Approved::default() };
        let profile = self.profile_of(asked.context)?;
        match self.open(&profile).await {
            // Nobody can have approved on a server that an explanation does not start.
            Err(_) if self.only_looks() => return Ok(approved),
            opened => opened?,
        }
        let Some(row) = profile.store.find_request(&digest).await? else { return Ok(approved) };
        for given in &row.given {
            if self.counts(&row, given, asked.context).await {
                approved.groups.insert(given.group.clone());
            }
        }
        approved.found = Some((profile.name().to_owned(), row.id));
        Ok(approved)
    }

    /// Takes the approvals of all demanded groups, if they are all there. Returns whether they are the request's now: of
    /// several that want them at once, one gets them.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn take_approvals(&self, approved: &Approved, asked: &Asked<'_>) -> Result<bool, Failure> {
        let Some((profile, row)) = &approved.found else { return Ok(false) };
        if !asked.groups.is_subset(&approved.groups) {
            return Ok(false);
        }
        let groups: Vec<&str> = asked.groups.iter().map(String::as_str).collect();
        let store = &self.profile(profile)?.store;
        Ok(store.take_approvals(*row, &groups, asked.context.request_id).await?)
    }

    /// Gives back what a request took that was refused before anything was done for it.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written; it then stays taken.
    pub async fn give_approvals_back(&self, approved: &Approved, context: &Context) -> Result<(), Failure> {
        let Some((profile, row)) = &approved.found else { return Ok(()) };
        Ok(self.profile(profile)?.store.give_approvals_back(*row, context.request_id).await?)
    }

    /// Notes a request so that it can be approved.
    ///
    /// # Errors
    /// `quota_exceeded` if the subject has too many waiting, or the metadata cannot be written.
    pub async fn ask_for_approval(&self, asked: &Asked<'_>) -> Result<(), Failure> {
        let digest = self.request_digest(asked);
        let profile = self.profile_of(asked.context)?;
        self.open(&profile).await?;
        let id = Uuid::new_v4();
        let subject = &asked.context.principal.subject;
        let sealed = json!({
            "digest": hex(&digest), "subject": subject, "groups": asked.groups, "what": shown_request(asked),
        });
        let sealed = sealed.to_string();
        if sealed.len() > ASKED_BYTES_MAX {
            let text = format!(
                "the request has {} bytes with its arguments, and nobody approves what is longer than {ASKED_BYTES_MAX}",
                sealed.len()
            );
            return Err(Failure::new(Code::ApprovalRequired, text)
                .hint("make it in parts that somebody can read, each of which is approved"));
        }
        let sealed = self.inner().keys.seal(SandboxId::from(id), REQUEST_FIELD, &Secret::new(sealed))?;
        let new = NewRequest { id, digest: &digest, subject, sealed: sealed.as_bytes() };
        match profile.store.note_request(&new).await? {
            Noted::New | Noted::Waits => Ok(()),
            Noted::TooMany(max) => {
                let text =
                    format!("`{subject}` has {max} requests waiting for approval, which is the most there may be");
                Err(Failure::new(Code::QuotaExceeded, text)
                    .hint("have some of them approved, or wait until they are over"))
            }
        }
    }

    /// Returns the requests that wait and are the caller's own, or its groups' to approve, and whether there are more than
    /// were looked at. What is asked about a sandbox that is gone waits no longer. Long texts are cut, unless one request is
    /// asked for by its digest. Starts nothing.
    ///
    /// # Errors
    /// Fails if the metadata of a server that runs cannot be read, or what is asked for is no digest.
    pub async fn waiting_approvals<T>(
        &self,
        permit: &Permit<T>,
        digest: Option<&str>,
    ) -> Result<(Vec<Waiting>, bool), Failure> {
        require(permit, Impact::Reads, None)?;
        let wanted = digest.map(|digest| unhex(digest).ok_or_else(no_digest)).transpose()?;
        let principal = &permit.grant().principal;
        let (mut waiting, mut more) = (Vec::new(), false);
        for profile in self.profiles() {
            if self.looking().open(profile).await.is_err() {
                continue;
            }
            let (rows, are_more) = match &wanted {
                Some(wanted) => (profile.store.find_request(wanted).await?.into_iter().collect(), false),
                None => profile.store.waiting_requests().await?,
            };
            more |= are_more;
            for row in rows {
                let Some(opened) = self.open_request(&row).await else { continue };
                if is_gone(profile, &opened).await {
                    continue;
                }
                let mut shown = self.shown(profile, &row, opened, principal).await;
                if let Some(shown) = shown.as_mut().filter(|_| wanted.is_none()) {
                    shown.cut = cut(&mut shown.what);
                }
                waiting.extend(shown);
            }
        }
        Ok((waiting, more))
    }

    /// Approves a request in the name of those demanded groups that the caller is in.
    ///
    /// # Errors
    /// `invalid_arguments` if no such request waits for the caller, `denied` for the caller's own.
    pub async fn approve<T>(&self, permit: &Permit<T>, digest: &str) -> Result<Approval, Failure> {
        let course = &permit.grant().course;
        let looked = async {
            require(permit, Impact::Writes, None)?;
            known(&permit.grant().principal)?;
            self.find_to_approve(digest, &permit.grant().principal).await
        };
        let (profile, row, mut request) = course.refusing(looked.await)?;
        let principal = &permit.grant().principal;
        course.acts();
        let usable_until = profile.store.approval_end().await?;
        let mine: Vec<String> =
            request.groups.iter().filter(|group| principal.groups.contains(group)).cloned().collect();
        for group in &mine {
            let sealed = json!({
                "digest": request.digest, "group": group, "approver": principal.subject,
                "until": usable_until.unix_ms(),
            });
            let sealed = Secret::new(sealed.to_string());
            let sealed = self.inner().keys.seal(SandboxId::from(row.id), APPROVAL_FIELD, &sealed)?;
            if !profile.store.note_approval(row.id, group, sealed.as_bytes(), usable_until).await? {
                return Err(nothing_waits());
            }
        }
        let others =
            row.given.iter().filter(|given| request.approved.contains(&given.group) && !mine.contains(&given.group));
        let until = others.map(|given| given.expires_at).chain([usable_until]).min();
        for group in mine {
            if !request.approved.contains(&group) {
                request.approved.push(group);
            }
        }
        request.approved.sort_unstable();
        request.usable_until = until.filter(|_| request.is_approved());
        Ok(Approval { request, usable_until })
    }

    async fn find_to_approve(
        &self,
        digest: &str,
        principal: &Principal,
    ) -> Result<(Arc<Profile>, WaitingRequest, Waiting), Failure> {
        let bytes = unhex(digest).ok_or_else(no_digest)?;
        let mut failure = None;
        for profile in self.profiles() {
            let found = match self.looking().open(profile).await {
                Ok(()) => profile.store.find_request(&bytes).await.map_err(Failure::from),
                Err(error) => Err(error),
            };
            let row = match found {
                Ok(Some(row)) => row,
                Ok(None) => continue,
                Err(error) => {
                    failure = failure.or(Some(error));
                    continue;
                }
            };
            let Some(opened) = self.open_request(&row).await else { continue };
            if opened.subject == principal.subject {
                return Err(Failure::new(Code::Denied, "nobody approves a request of their own")
                    .hint("another principal of the group must approve it"));
            }
            return match self.shown(profile, &row, opened, principal).await {
                Some(shown) if shown.yours => Ok((Arc::clone(profile), row, shown)),
                Some(_) | None => Err(nothing_waits()),
            };
        }
        Err(failure.unwrap_or_else(nothing_waits))
    }

    /// Returns a request as the caller may see it; none where it is neither its own nor its groups' to approve.
    async fn shown(
        &self,
        profile: &Profile,
        row: &WaitingRequest,
        opened: Opened,
        principal: &Principal,
    ) -> Option<Waiting> {
        let own = opened.subject == principal.subject;
        let in_group = opened.groups.iter().any(|group| principal.groups.contains(group));
        if !own && !in_group {
            return None;
        }
        let digest = hex(&row.digest);
        let (mut approved, mut until) = (Vec::new(), None);
        for given in &row.given {
            if self.open_approval(row, given, &digest, &opened.subject).await {
                approved.push(given.group.clone());
                until = until.into_iter().chain([given.expires_at]).min();
            }
        }
        let mut shown = Waiting {
            digest,
            profile: profile.name().to_owned(),
            what: opened.what,
            cut: Vec::new(),
            groups: opened.groups,
            approved,
            usable_until: None,
            asked_at: row.asked_at,
            expires_at: row.expires_at,
            yours: in_group && !own,
        };
        shown.usable_until = until.filter(|_| shown.is_approved());
        Some(shown)
    }

    /// Returns whether an approval counts for a request: sealed by us, of this request, by another, and not over.
    async fn counts(&self, row: &WaitingRequest, given: &GivenApproval, context: &Context) -> bool {
        self.open_approval(row, given, &hex(&row.digest), &context.principal.subject).await
    }

    async fn open_approval(&self, row: &WaitingRequest, given: &GivenApproval, digest: &str, subject: &str) -> bool {
        let Some(sealed) = self.open_json(row.id, APPROVAL_FIELD, &given.sealed).await else { return false };
        let text = |key: &str| sealed.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let until = sealed.get("until").and_then(Value::as_u64);
        let approver = text("approver");
        text("digest") == digest
            && text("group") == given.group
            && until == Some(given.expires_at.unix_ms())
            && !approver.is_empty()
            && approver != subject
    }

    async fn open_request(&self, row: &WaitingRequest) -> Option<Opened> {
        let sealed = self.open_json(row.id, REQUEST_FIELD, &row.sealed).await?;
        if sealed.get("digest")?.as_str()? != hex(&row.digest) {
            return None;
        }
        let groups = sealed.get("groups")?.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        Some(Opened { subject: sealed.get("subject")?.as_str()?.to_owned(), groups, what: sealed.get("what")?.clone() })
    }

    /// Opens what was sealed for a row. What does not open was made by somebody without the key, and is not there.
    async fn open_json(&self, row: Uuid, field: &str, sealed: &[u8]) -> Option<Value> {
        let sealed = Sealed::from_bytes(sealed.to_vec());
        match self.inner().keys.open_sealed(SandboxId::from(row), field, &sealed).await {
            Ok(text) => serde_json::from_str(text.expose()).ok(),
            Err(error) => {
                tracing::warn!(%error, "what is kept of an approval does not open, and does not count");
                None
            }
        }
    }

    /// Returns the profile whose metadata keeps a request's approvals.
    fn profile_of(&self, context: &Context) -> Result<Arc<Profile>, Failure> {
        self.profile(context.server.as_ref().map_or(self.default_profile(), |server| server.profile.as_str()))
    }

    /// Returns what stands for exactly this request: nothing about it can be guessed without the key.
    fn request_digest(&self, asked: &Asked<'_>) -> Vec<u8> {
        let context = asked.context;
        let source = context.clone_source.as_ref().map(|source| {
            json!([
                source.name,
                source.host,
                source.port,
                source.database,
                source.user,
                format!("{:?}", source.tls),
                source.production,
                source.schema_only,
                source.reason,
            ])
        });
        let given: Map<String, Value> =
            asked.arguments.iter().filter(|(_, value)| !value.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
        let whole = json!({
            "subject": context.principal.subject,
            "owner": context.principal.owner,
            "group owner": context.group_owner,
            "operation": context.operation,
            "profile": context.server.as_ref().map(|server| &server.profile),
            "sandbox": context.sandbox.as_ref().map(|sandbox| sandbox.id.to_string()),
            "source": source,
            // One that the repository records stands in no argument, and may change meanwhile.
            "command": context.requested.command,
            "arguments": sorted(&Value::Object(given)),
        });
        self.inner().keys.keyed_digest(sorted(&whole).to_string().as_bytes()).to_vec()
    }
}

/// Returns whether a request is about a sandbox that is not there any more. Where that cannot be known it is not said.
async fn is_gone(profile: &Profile, opened: &Opened) -> bool {
    let id = opened.what.get("databaseId").and_then(Value::as_str).and_then(|id| id.parse::<SandboxId>().ok());
    let Some(id) = id else { return false };
    match profile.store.find(&Find::Id(id)).await {
        Ok(Some(sandbox)) => match sandbox.state {
            State::Creating | State::Ready => false,
            State::Deleting | State::Deleted | State::Failed => true,
        },
        Ok(None) => true,
        Err(_) => false,
    }
}

/// Refuses who chose the numbers that it is known by.
fn known(principal: &Principal) -> Result<(), Failure> {
    match principal.identity {
        Identity::Certain => Ok(()),
        Identity::Chosen => Err(Failure::new(
            Code::Denied,
            "nobody is known by its user in a user namespace, and nothing can be approved from within one",
        )
        .hint("approve from a shell outside of it: on the machine itself where this is a container without root")),
    }
}

fn no_digest() -> Failure {
    Failure::new(Code::InvalidArguments, format!("a request's digest has {DIGEST_CHARS} hexadecimal digits"))
        .hint("it stands in the refusal of the request, and in `list_approvals`")
}

fn nothing_waits() -> Failure {
    Failure::new(Code::InvalidArguments, "no request with this digest waits for your approval")
        .hint("`list_approvals` shows those that do; a server that does not run is not asked")
}

/// Returns a value with the keys of its objects in order, whatever order they came in.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<_> = fields.keys().collect();
            keys.sort();
            keys.into_iter().filter_map(|key| Some((key.clone(), sorted(fields.get(key)?)))).collect()
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if text.len() != DIGEST_CHARS || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    (0..DIGEST_CHARS).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_arguments_makes_no_other_request() {
        let one: Value = serde_json::from_str(r#"{"a":{"x":1,"y":[1,{"q":1,"p":2}]},"b":2}"#).unwrap();
        let other: Value = serde_json::from_str(r#"{"b":2,"a":{"y":[1,{"p":2,"q":1}],"x":1}}"#).unwrap();
        assert_eq!(sorted(&one).to_string(), sorted(&other).to_string());
    }

    #[test]
    fn a_digest_is_read_as_it_is_written() {
        let digest: Vec<u8> = (0..32).map(|n| n * 8).collect();
        assert_eq!(unhex(&hex(&digest)), Some(digest));
        for bad in ["", "00", &"g".repeat(64), &"é".repeat(32), &"0".repeat(65)] {
            assert_eq!(unhex(bad), None, "{bad}");
        }
    }
}
