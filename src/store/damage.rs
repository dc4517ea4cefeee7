//! Finds rows that this program does not leave behind: edited by hand, or restored from a backup that does not fit.
//!
//! Looks only. What is wrong with a row is said by the same code that refuses it.

use super::record::{self, SANDBOX_COLUMNS, SOUND};
use super::{Store, StoreError};

/// Rows shown at most.
const SHOWN_MAX: i64 = 50;

/// One row, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The sandbox's id.
    pub id: String,
    /// What is wrong, in words.
    pub fault: String,
}

impl Store {
    /// Returns rows that cannot be read, and those whose state does not fit what is recorded beside it.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn damage(&self) -> Result<Vec<Damage>, StoreError> {
        let typed = self.typed("look for damaged rows");
        let session = self.session("damage").await?;
        // Also those of another prefix that bear a name of ours: the prefix may be what was edited.
        let unsound = format!(
            "select {SANDBOX_COLUMNS} from pgsandbox.sandboxes b
             where b.state not in ('deleted', 'failed') and not coalesce({SOUND}, false)
               and (b.prefix = $1 or pg_catalog.starts_with(b.database_name, $1 || '_'))
             order by b.id limit {SHOWN_MAX}"
        );
        let mut damage = Vec::new();
        for row in session.query(&unsound, &[&self.prefix]).await.map_err(&typed)? {
            let fault = match record::sandbox(&self.profile, &row) {
                Err(StoreError::Damaged { what, .. }) => format!("{what} is not as this program writes it"),
                Err(error) => error.to_string(),
                Ok(_) => "it is not as this program writes it".to_owned(),
            };
            let id = row.try_get::<_, uuid::Uuid>(0).map(|id| id.to_string()).unwrap_or_default();
            damage.push(Damage { id, fault });
        }
        // A plan and its sandbox change in one statement, so none of these is ever seen in between.
        let astray = format!(
            "select b.id::text, case
                 when b.state in ('deleted', 'failed') then 'it is marked as gone, and was not removed by this program'
                 when b.state = 'ready' then 'it is ready, and a plan for it is open'
                 else 'it is marked as ' || b.state || ', and there is no plan for it: delete it, or put `state` right' end
             from pgsandbox.sandboxes b
             where b.prefix = $1
               and case b.state when 'ready' then {OPEN_PLAN} when 'creating' then not {OPEN_PLAN}
                   when 'deleting' then not {OPEN_PLAN} else b.ended_at is null end
             order by b.id limit {SHOWN_MAX}"
        );
        for row in session.query(&astray, &[&self.prefix]).await.map_err(&typed)? {
            damage.push(Damage { id: row.get(0), fault: row.get(1) });
        }
        // A template's two rows are written in one transaction.
        let halves = format!(
            "select b.id::text, case
                 when b.kind <> 'template' then 'it is a sandbox, and there is a row for it in `pgsandbox.templates`'
                 when b.template_name is null then 'it is a template without a name'
                 else 'it is a template, and there is no row for it in `pgsandbox.templates`' end
             from pgsandbox.sandboxes b left join pgsandbox.templates t on t.sandbox_id = b.id
             where b.prefix = $1 and b.state not in ('deleted', 'failed')
               and ((b.kind = 'template') <> (t.sandbox_id is not null) or (b.kind = 'template' and b.template_name is null))
             order by b.id limit {SHOWN_MAX}"
        );
        for row in session.query(&halves, &[&self.prefix]).await.map_err(&typed)? {
            damage.push(Damage { id: row.get(0), fault: row.get(1) });
        }
        Ok(damage)
    }
}

const OPEN_PLAN: &str =
    "exists (select from pgsandbox.plans p where p.sandbox_id = b.id and p.state in ('running', 'undoing'))";
