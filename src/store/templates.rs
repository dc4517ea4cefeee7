//! Rows of templates: sandboxes of another kind, each with a name that its owner has given it.
//!
//! Whatever is asked here is asked in the name of one owner: nobody is told of another's templates.

use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Transaction};
use uuid::Uuid;

use super::plans::{HELD, lines};
use super::record::{self, SANDBOX_COLUMNS, SANDBOX_COLUMNS_COUNT as MORE, SOUND};
use super::sandboxes::principal_lock;
use super::{Held, Mark, PlanKind, Reservation, ReserveError, Sandbox, Store, StoreError};
use crate::model::{Code, Failure, PlanId, SandboxId};

/// A template, with what is known of it beside what is known of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Its row as a sandbox.
    pub sandbox: Sandbox,
    /// What its owner calls it.
    pub name: String,
    /// Who made it, by the caller's word.
    pub created_by: Option<String>,
    /// What it is for, by the caller's word.
    pub notes: Option<String>,
    /// The server's major version when it was made.
    pub major: u16,
    /// The extensions in it, with their versions then.
    pub extensions: Vec<(String, String)>,
}

/// How much an owner may keep in templates on one profile.
#[derive(Clone, Copy, Debug)]
pub struct TemplateLimits {
    /// Templates.
    pub count: u64,
    /// Their bytes together.
    pub bytes: u64,
}

/// Why a template is not reserved.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TemplateRefused {
    /// The owner has one of that name, and did not ask for it to be replaced.
    #[error("there is a template `{0}` already")]
    Exists(String),
    /// The owner has as many as there may be.
    #[error("owner `{owner}` has {used} templates on profile `{profile}`; the limit is {limit}, set by `core`")]
    TooMany {
        /// The profile.
        profile: String,
        /// Whose they are.
        owner: String,
        /// How many there are.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// The owner's templates would be too large together.
    #[error(
        "templates of owner `{owner}` on profile `{profile}` would hold {bytes} bytes; the limit is {limit}, set by `core`"
    )]
    TooLarge {
        /// The profile.
        profile: String,
        /// Whose they are.
        owner: String,
        /// How many bytes they would hold.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// As for a sandbox.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
}

impl From<StoreError> for TemplateRefused {
    fn from(error: StoreError) -> Self {
        Self::Reserve(error.into())
    }
}

impl From<TemplateRefused> for Failure {
    fn from(refused: TemplateRefused) -> Self {
        let message = refused.to_string();
        match refused {
            TemplateRefused::Exists(_) => Self::new(Code::InvalidArguments, message)
                .hint("give another name, or `replace: true`")
                .naming(&["replace"]),
            TemplateRefused::TooMany { .. } | TemplateRefused::TooLarge { .. } => {
                Self::new(Code::QuotaExceeded, message)
                    .hint("delete a template with `delete_template` first; `list_templates` shows them")
            }
            TemplateRefused::Reserve(error) => error.into(),
        }
    }
}

const TEMPLATE_COLUMNS: &str = "t.created_by, t.notes, t.major, t.extensions";

impl Store {
    /// Writes a template's row and its plan, if there is room for it and its name is free or to be replaced. `bytes` is
    /// what it will hold. Reservations of one owner wait for each other.
    ///
    /// # Errors
    /// Fails if the name is taken, or a limit is reached.
    pub async fn reserve_template(
        &self,
        new: &Reservation,
        replace: bool,
        bytes: u64,
        limits: TemplateLimits,
    ) -> Result<(Sandbox, Held), TemplateRefused> {
        self.number()?;
        let typed = self.typed("reserve a template");
        let Some(template) = &new.template else {
            return Err(StoreError::Corrupt("a template's reservation").into());
        };
        let mut session = self.session("reserve-template").await?;
        let transaction = session.transaction().await.map_err(&typed)?;
        self.take_turn(&transaction, &new.owner).await?;
        self.check_room(&transaction, new, replace, bytes, limits).await?;
        let sandbox = self.insert(&transaction, new).await?;
        let extensions: serde_json::Value =
            template.extensions.iter().map(|(name, version)| serde_json::json!([name, version])).collect();
        transaction
            .execute(
                "with b as (update pgsandbox.sandboxes set bytes = $2, measured_at = now() where id = $1 returning id)
                 insert into pgsandbox.templates (sandbox_id, created_by, notes, major, extensions)
                 select b.id, $3, $4, $5, $6 from b",
                &[
                    &Uuid::from(new.id),
                    &i64::try_from(bytes).unwrap_or(i64::MAX),
                    &template.created_by,
                    &template.notes,
                    &i32::from(template.major),
                    &extensions,
                ],
            )
            .await
            .map_err(&typed)?;
        let plan = (new.plan, PlanKind::Create);
        let held = self.begin_plan(&transaction, plan, new.id, new.request_id, &new.first).await?;
        self.pass("reserve-template-commit").await?;
        transaction.commit().await.map_err(&typed)?;
        self.written("reserve-template").await?;
        Ok((sandbox, held))
    }

    /// Says what [`Store::reserve_template`] would refuse with, and reserves nothing.
    ///
    /// # Errors
    /// Fails as the reservation would.
    pub async fn rehearse_template(
        &self,
        new: &Reservation,
        replace: bool,
        bytes: u64,
        limits: TemplateLimits,
    ) -> Result<(), TemplateRefused> {
        let session = self.session("rehearse-template").await?;
        self.check_room(&*session, new, replace, bytes, limits).await
    }

    async fn check_room(
        &self,
        client: &impl GenericClient,
        new: &Reservation,
        replace: bool,
        bytes: u64,
        limits: TemplateLimits,
    ) -> Result<(), TemplateRefused> {
        let name = new.template.as_ref().map(|template| template.name.as_str()).unwrap_or_default();
        let row = client
            .query_one(
                "select count(*) filter (where not $4 or b.template_name <> $3),
                        coalesce(sum(b.bytes) filter (where not $4 or b.template_name <> $3), 0)::bigint,
                        count(*) filter (where b.template_name = $3)
                 from pgsandbox.sandboxes b
                 where b.prefix = $1 and b.owner = $2 and b.kind = 'template' and b.state in ('creating', 'ready')",
                &[&self.prefix, &new.owner, &name, &replace],
            )
            .await
            .map_err(self.typed("count an owner's templates"))?;
        let number = |at: usize| u64::try_from(row.get::<_, i64>(at)).unwrap_or(0);
        if number(2) > 0 && !replace {
            return Err(TemplateRefused::Exists(name.to_owned()));
        }
        let (profile, owner) = (self.profile.clone(), new.owner.clone());
        if number(0) >= limits.count {
            return Err(TemplateRefused::TooMany { profile, owner, used: number(0), limit: limits.count });
        }
        let held = number(1).saturating_add(bytes);
        if held > limits.bytes {
            return Err(TemplateRefused::TooLarge { profile, owner, bytes: held, limit: limits.bytes });
        }
        Ok(())
    }

    async fn take_turn(&self, transaction: &Transaction<'_>, owner: &str) -> Result<(), StoreError> {
        let key = principal_lock(&self.prefix, owner);
        transaction
            .query_typed("select pg_catalog.pg_advisory_xact_lock($1)", &[(&key, Type::INT8)])
            .await
            .map(drop)
            .map_err(self.typed("take turns with templates"))
    }

    /// Ends a template's plan well: its last steps are done, and it is ready. Another that had its name until now is
    /// marked for removal with it.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] if the plan has changed hands.
    pub async fn finish_template(&self, held: &Held, done: &[&str]) -> Result<Sandbox, StoreError> {
        let typed = self.typed("end a template's plan");
        let mut session = self.session("finish-template").await?;
        let transaction = session.transaction().await.map_err(&typed)?;
        let owner = transaction
            .query_opt("select owner from pgsandbox.sandboxes where id = $1", &[&Uuid::from(held.sandbox)])
            .await
            .map_err(&typed)?;
        self.take_turn(&transaction, owner.ok_or(StoreError::Fenced)?.get(0)).await?;
        transaction
            .execute(
                "with o as (update pgsandbox.sandboxes o set state = 'deleting' from pgsandbox.sandboxes n
                            where n.id = $1 and o.prefix = n.prefix and o.owner = n.owner and o.kind = 'template'
                              and o.template_name = n.template_name and o.state = 'ready' and o.id <> n.id
                            returning o.id)
                 insert into pgsandbox.plans (id, sandbox_id, kind, state, request_id)
                 select $2::uuid, o.id, 'delete', 'running', p.request_id from o, pgsandbox.plans p where p.id = $3",
                &[&Uuid::from(held.sandbox), &Uuid::from(PlanId::fresh()), &Uuid::from(held.plan)],
            )
            .await
            .map_err(&typed)?;
        let sql = format!(
            "with p as (update pgsandbox.plans p set state = 'done', holder = null where {HELD} and p.state = 'running'
                        returning p.id, p.epoch, p.sandbox_id),
                  j as ({}),
                  b as (update pgsandbox.sandboxes b set state = 'ready' from p
                        where b.id = p.sandbox_id and b.state = 'creating' returning b.*)
             select {SANDBOX_COLUMNS} from b",
            lines("p", "$4::text[]", Mark::Done)
        );
        let row = transaction
            .query_opt(&sql, &[&Uuid::from(held.plan), &held.holder, &held.epoch, &done])
            .await
            .map_err(&typed)?;
        // Rolled back with all else if the plan is not ours any more.
        let sandbox = record::sandbox(&self.profile, &row.ok_or(StoreError::Fenced)?)?;
        self.pass("finish-template-commit").await?;
        transaction.commit().await.map_err(&typed)?;
        self.written("finish-template").await?;
        Ok(sandbox)
    }

    /// Returns an owner's template that is ready.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn template(&self, owner: &str, name: &str) -> Result<Option<Template>, StoreError> {
        Ok(self.templates_like(owner, Some(name)).await?.pop())
    }

    /// Returns an owner's templates that are ready, by name.
    ///
    /// # Errors
    /// Fails if the metadata cannot be read.
    pub async fn templates(&self, owner: &str) -> Result<Vec<Template>, StoreError> {
        self.templates_like(owner, None).await
    }

    async fn templates_like(&self, owner: &str, name: Option<&str>) -> Result<Vec<Template>, StoreError> {
        let sql = format!(
            "select {SANDBOX_COLUMNS}, {TEMPLATE_COLUMNS} from pgsandbox.sandboxes b
             join pgsandbox.templates t on t.sandbox_id = b.id
             where b.prefix = $1 and b.owner = $2 and b.kind = 'template' and b.state = 'ready' and {SOUND}
               and ($3::text is null or b.template_name = $3) order by b.template_name"
        );
        let rows = self
            .session("templates")
            .await?
            .query(&sql, &[&self.prefix, &owner, &name])
            .await
            .map_err(self.typed("list templates"))?;
        rows.iter().map(|row| template(&self.profile, row)).collect()
    }

    /// Marks a ready sandbox as being made anew and takes the plan that does it, with its first steps noted as begun.
    /// `None` if it is not ready any more.
    ///
    /// # Errors
    /// Fails if the metadata cannot be written.
    pub async fn begin_reset(
        &self,
        id: SandboxId,
        plan: PlanId,
        request_id: crate::model::RequestId,
        first: &[&str],
    ) -> Result<Option<(Held, Sandbox)>, StoreError> {
        let me = self.number()?;
        let sql = format!(
            "with b as (update pgsandbox.sandboxes b
                        set state = 'creating', login_withheld = false, login_turning = false, measured_at = null
                        where b.id = $1 and b.prefix = $2 and b.kind = 'sandbox' and b.state = 'ready'
                          and b.expires_at > now() returning b.*),
                  p as (insert into pgsandbox.plans (id, sandbox_id, kind, state, holder, request_id)
                        select $3::uuid, b.id, 'create', 'running', $4::integer, $5::uuid from b returning id, epoch),
                  j as ({})
             select {SANDBOX_COLUMNS} from b",
            lines("p", "$6::text[]", Mark::Intent)
        );
        let row = self
            .session("begin-reset")
            .await?
            .query_opt(&sql, &[&Uuid::from(id), &self.prefix, &Uuid::from(plan), &me, &Uuid::from(request_id), &first])
            .await
            .map_err(self.typed("mark a sandbox as being made anew"))?;
        self.written("begin-reset").await?;
        let Some(row) = row else { return Ok(None) };
        let held = Held { plan, sandbox: id, kind: PlanKind::Create, holder: me, epoch: 1, begun: true };
        Ok(Some((held, record::sandbox(&self.profile, &row)?)))
    }
}

fn template(profile: &str, row: &tokio_postgres::Row) -> Result<Template, StoreError> {
    let sandbox = record::sandbox(profile, row)?;
    let damaged = |what: &'static str| StoreError::Damaged { sandbox: sandbox.id, what };
    let name = sandbox.template_name.clone().ok_or_else(|| damaged("`template_name`"))?;
    let major: i32 = row.try_get(MORE + 2).map_err(|_| damaged("`major`"))?;
    let extensions: serde_json::Value = row.try_get(MORE + 3).map_err(|_| damaged("`extensions`"))?;
    let extensions: Vec<(String, String)> = serde_json::from_value(extensions).map_err(|_| damaged("`extensions`"))?;
    Ok(Template {
        name,
        created_by: row.try_get(MORE).map_err(|_| damaged("`created_by`"))?,
        notes: row.try_get(MORE + 1).map_err(|_| damaged("`notes`"))?,
        major: u16::try_from(major).map_err(|_| damaged("`major`"))?,
        extensions,
        sandbox,
    })
}
