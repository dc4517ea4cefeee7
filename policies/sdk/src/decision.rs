//! Builds descriptions and decisions.

use crate::{Charge, Decision, Denial, Description, Obligation, Phase, Quota, Scope, Verdict};

impl Description {
    /// Starts a description. `settings_schema` is a JSON Schema.
    pub fn new(name: &str, version: &str, settings_schema: &str) -> Self {
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
            covers: Vec::new(),
            concerns: Vec::new(),
            phases: Vec::new(),
            codes: Vec::new(),
            settings_schema: settings_schema.to_owned(),
        }
    }

    /// Names operations that a `pass` answers for; they become concerns too.
    #[must_use]
    pub fn covers<'a>(mut self, operations: impl IntoIterator<Item = &'a str>) -> Self {
        for operation in operations {
            self.covers.push(operation.to_owned());
            add(&mut self.concerns, operation);
        }
        self
    }

    /// Names operations that the policy wants to see; `*` is every operation.
    #[must_use]
    pub fn concerns<'a>(mut self, operations: impl IntoIterator<Item = &'a str>) -> Self {
        for operation in operations {
            add(&mut self.concerns, operation);
        }
        self
    }

    /// Names phases beside [`Phase::Before`] in which the policy wants to be asked.
    #[must_use]
    pub fn phases(mut self, phases: impl IntoIterator<Item = Phase>) -> Self {
        self.phases.extend(phases);
        self
    }

    /// Names the codes of its denials.
    #[must_use]
    pub fn codes<'a>(mut self, codes: impl IntoIterator<Item = &'a str>) -> Self {
        self.codes.extend(codes.into_iter().map(str::to_owned));
        self
    }
}

fn add(list: &mut Vec<String>, word: &str) {
    if !list.iter().any(|w| w == word) {
        list.push(word.to_owned());
    }
}

impl Decision {
    fn of(verdict: Verdict) -> Self {
        Self { verdict, obligations: Vec::new(), charges: Vec::new(), warnings: Vec::new() }
    }

    /// Answers for the operation, with nothing against the request.
    pub fn pass() -> Self {
        Self::of(Verdict::Pass)
    }

    /// Has no opinion. Obligations and charges added to it still hold.
    pub fn abstain() -> Self {
        Self::of(Verdict::Abstain)
    }

    /// Refuses under a declared code. `message` tells the agent what is refused and what would be allowed; `audit`
    /// tells auditors why.
    pub fn deny(code: &str, message: impl Into<String>, audit: impl Into<String>) -> Self {
        Self::of(Verdict::Deny(Denial {
            code: code.to_owned(),
            message: message.into(),
            audit: audit.into(),
            retry_after_ms: None,
        }))
    }

    /// Adds a demand.
    #[must_use]
    pub fn demand(mut self, obligation: Obligation) -> Self {
        self.obligations.push(obligation);
        self
    }

    /// Adds a demand where there is one.
    #[must_use]
    pub fn demand_some(self, obligation: Option<Obligation>) -> Self {
        match obligation {
            Some(obligation) => self.demand(obligation),
            None => self,
        }
    }

    /// Takes tokens from one of the policy's buckets.
    #[must_use]
    pub fn charge(mut self, bucket: &str, cost: u32) -> Self {
        self.charges.push(Charge { bucket: bucket.to_owned(), cost });
        self
    }

    /// Adds a remark for the caller.
    #[must_use]
    pub fn warn(mut self, warning: impl Into<String>) -> Self {
        self.warnings.push(warning.into());
        self
    }
}

impl Obligation {
    /// Allows at most `limit` live sandboxes, counting the one to be made.
    pub fn live_sandboxes(scope: Scope, limit: u64) -> Self {
        Self::MaxLiveSandboxes(Quota { scope, limit })
    }

    /// Allows at most `limit` bytes in all live sandboxes together.
    pub fn database_bytes(scope: Scope, limit: u64) -> Self {
        Self::MaxDatabaseBytes(Quota { scope, limit })
    }
}
