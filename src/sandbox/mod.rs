//! The lifecycle core: makes, finds, lends, extends and removes sandboxes.
//!
//! Whatever changes something takes a [`Permit`](crate::admission::Permit) and runs as a plan in a task of its own,
//! through the journal; a dropped request does not drop the work, and a crash at any point leaves rows from which
//! the next start, or another server, finishes or takes back. Nothing is dropped that has no row of ours and does
//! not bear the profile's prefix. What a sandbox is made of is known to its engine only.

mod access;
mod approvals;
pub mod bounds;
mod bytes;
mod checks;
mod clock;
mod clones;
mod copies;
mod core;
mod create;
mod decided;
mod disposable;
mod dumps;
mod ensure;
mod find;
mod kept;
mod list;
mod orphans;
mod pool;
mod profile;
mod remove;
mod request;
mod reset;
mod room;
mod rotation;
pub mod schema;
mod shown_request;
mod sources;
mod templates;
mod twins;
mod upkeep;
mod work;

pub use self::core::{Core, Parts};
pub use access::SessionLease;
pub use approvals::{Approval, Approved, Asked, Demanded, Waiting};
pub use clones::{CloneRequest, Cloned};
pub use create::Created;
pub use disposable::Disposable;
pub use dumps::{ExportRequest, ImportRequest, Imported, KeptDump, Manifest, ManifestExtension, ManifestSetting};
pub use ensure::{Ensured, ServerStatus, Wanted};
pub use find::{Resolved, Selector, Target, not_found};
pub use list::{ListFilter, ListReport, ProfileFailure};
pub use orphans::Orphans;
pub use pool::Reusable;
pub use profile::{Profile, ProfileSettings};
pub use remove::{CleanupFailure, CleanupFilter, CleanupReport, Deleted};
pub use request::{BUILT_IN_EXTENSION, CreateRequest, quota_limits, ttl_limit};
pub use shown_request::Cut;
pub use sources::{CloneAsked, SourceRef, SourceSettings, UnusableSource};
pub use templates::{TemplateList, TemplateRequest};
pub use upkeep::{Reaped, UpkeepAudit, UpkeptProfile};

pub use crate::store::{Idempotency, LiveUse, Sandbox, Source, State, Template};

use crate::store::QuotaLimits;
