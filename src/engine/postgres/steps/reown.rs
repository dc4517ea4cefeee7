//! Gives a copy to its own roles: everything in it that belonged to the source's, or that they might do.
//!
//! One transaction in the copy. `REASSIGN OWNED` and `DROP OWNED` act on shared objects too, on databases first of all:
//! what they do to the source and to others is undone in the same transaction, so nobody ever sees it, and compared before it
//! commits. What a right was is read when it is taken, not before: somebody may take it back at that moment.
//! Two that copy one source take turns.

use futures_util::future::try_join;
use sha2::{Digest, Sha256};
use tokio_postgres::Transaction;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::changed::{Changers, LOCK_DATABASES, Patience};
use super::guard::lasting_later;
use super::rights::{Named, Rights};
use super::{Work, contended};
use crate::engine::postgres::admin::{AdminSession, ident, literal, refused};
use crate::engine::postgres::server::PooledSession;
use crate::engine::{Contents, EngineError, Seen};
use crate::model::SandboxNames;

/// How often it is tried against what others hold; against who changes the source's row, or one that names its roles, it is
/// tried for some time.
const ATTEMPTS_MAX: u32 = 8;
/// How long it waits for what others hold of shared rows, before those that are sandboxes are ended.
const LOCK_TIMEOUT: &str = "1s";

/// What others may do to rows of databases while a copy is given to its roles.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    MayChange,
    Wait,
}

/// Who of the source is who in the copy.
pub(super) struct Mapping<'a> {
    pub(super) source: &'a SandboxNames,
    pub(super) copy: &'a SandboxNames,
    /// The source's roles: its owner, its reader.
    pub(super) oids: Vec<u32>,
}

impl<'a> Mapping<'a> {
    /// Returns whether a role is one of the copy's own.
    pub(super) fn is_new(&self, role: &str) -> bool {
        role == self.copy.owner_role || role == self.copy.readonly_role
    }

    /// Returns who stands for a role in the copy; a role that is none of the source's stands for itself.
    pub(super) fn role<'b>(&self, role: &'b str) -> &'b str
    where
        'a: 'b,
    {
        if role == self.source.owner_role {
            &self.copy.owner_role
        } else if role == self.source.readonly_role {
            &self.copy.readonly_role
        } else {
            role
        }
    }

    fn pairs(&self) -> [(&'a str, &'a str); 2] {
        [(&self.source.owner_role, &self.copy.owner_role), (&self.source.readonly_role, &self.copy.readonly_role)]
    }
}

/// What is noted of the source before anything is changed.
struct Noted {
    /// Databases that the source's owner owns: the source.
    databases: Vec<String>,
    /// What sets again on the copy what the source has beside its contents.
    carried: Vec<String>,
}

/// What the source's roles may do with shared objects.
struct Shared {
    /// What gives them their rights again.
    grants: Vec<String>,
    /// The source's owner and rights.
    before: Vec<String>,
}

/// What is known before the copy is entered.
struct Ahead<'a> {
    /// Ends the turn when it is dropped.
    turn: Transaction<'a>,
    /// Whether names read the same there as they do in the copy.
    is_alike: bool,
    mapping: Mapping<'a>,
    named: Named,
    /// What is to be noted, where names read the same.
    noted: Option<Noted>,
}

impl Work<'_> {
    /// Gives the copy to its roles, with all that the source has beside its contents.
    pub(super) async fn give_copy(&self, source: &SandboxNames) -> Result<(), EngineError> {
        let mut turns = self.server.admin_session().await?;
        // What lets the admin in has to be there for a session of its own.
        self.let_admin_in(&turns).await?;
        // Who is who is read while the session into it begins.
        let (ahead, entered) = tokio::join!(self.ahead(&mut turns, source), self.enter());
        let (mut ahead, mut inside) = (ahead?, entered?);
        let roles = [source.owner_role.as_str(), source.readonly_role.as_str()];
        let mut beside: Option<(PooledSession, i32)> = None;
        let (mut patience, mut changers) = (Patience::begin(), Changers::default());
        let mut attempt = 0;
        let given = loop {
            attempt += 1;
            // Every second time, as a database that somebody else makes meanwhile may be long in the making.
            let others = if attempt % 2 == 0 { Others::Wait } else { Others::MayChange };
            // Tried again, it is noted anew, as it may be what has changed.
            let noted = ahead.noted.take();
            let given = self.give(&mut inside, &ahead, noted, others);
            let given = match &beside {
                // Whoever has granted the source's roles something holds that up until his transaction ends.
                Some((beside, waiting)) => self.while_it_waits(beside, None, *waiting, given).await,
                None => given.await,
            };
            match given {
                Err(error) if patience.goes_on(&error, attempt, ATTEMPTS_MAX) => {}
                given => break given.map_err(contended),
            }
            if let Err(error) = self.keep_out(&inside, &roles, None, &mut changers).await {
                break Err(error);
            }
            patience.pause().await;
            let found = try_join(self.server.second_admin_session(), self.number_of(&inside)).await;
            match found {
                Ok((session, waiting)) => beside = session.map(|session| (session, waiting)),
                Err(error) => break Err(error),
            }
        };
        self.let_in_again(&inside, changers).await;
        let given = given?;
        if let Contents::Copy { seen, .. } = &self.spec.contents {
            seen.get_or_init(|| given);
        }
        Ok(())
    }

    /// Waits for its turn, which is over when the transaction is, reads who is who, and notes what can be noted from outside:
    /// a session that has just begun is slow to answer.
    async fn ahead<'a>(
        &'a self,
        turns: &'a mut AdminSession,
        source: &'a SandboxNames,
    ) -> Result<Ahead<'a>, EngineError> {
        let failed = refused("take turns", self.profile());
        let turn = turns.transaction().await.map_err(&failed)?;
        let key = turn_key(source);
        turn.query_typed("SELECT pg_catalog.pg_advisory_xact_lock($1)", &[(&key, Type::INT8)])
            .await
            .map_err(&failed)?;
        let source_name: [(&(dyn ToSql + Sync), Type); 1] = [(&source.database, Type::NAME)];
        let alike = turn.query_typed_opt(
            "SELECT s.encoding = d.encoding FROM pg_catalog.pg_database s, pg_catalog.pg_database d \
             WHERE s.datname = $1 AND d.datname = pg_catalog.current_database()",
            &source_name,
        );
        let alike = async { alike.await.map_err(&failed) };
        let (mapping, alike) = try_join(self.mapping(&turn, source), alike).await?;
        let is_alike = alike.is_some_and(|row| row.get(0));
        let named = async {
            let failed = refused("look whom the copy names", self.profile());
            Named::read(&turn, &mapping).await.map_err(failed)
        };
        let note = async { if is_alike { self.note(&turn, &mapping).await.map(Some) } else { Ok(None) } };
        let (named, noted) = try_join(named, note).await?;
        Ok(Ahead { turn, is_alike, mapping, named, noted })
    }

    /// Goes into the copy.
    async fn enter(&self) -> Result<AdminSession, EngineError> {
        let inside = self.server.session_in(&self.spec.names.database).await?;
        if !self.info.superuser {
            let failed = refused("give the copy to its roles", self.profile());
            inside.batch_execute(&format!("SET lock_timeout = {}", literal(LOCK_TIMEOUT))).await.map_err(failed)?;
        }
        Ok(inside)
    }

    async fn give(
        &self,
        inside: &mut AdminSession,
        ahead: &Ahead<'_>,
        noted: Option<Noted>,
        others: Others,
    ) -> Result<Seen, EngineError> {
        let failed = refused("give the copy to its roles", self.profile());
        let (mapping, named, source) = (&ahead.mapping, &ahead.named, ahead.mapping.source);
        for (old, new) in mapping.pairs() {
            self.join(inside, old).await?;
            self.join(inside, new).await?;
        }
        let transaction = inside.transaction().await.map_err(&failed)?;
        if (others == Others::Wait || !ahead.is_alike) && self.info.superuser {
            transaction.batch_execute(LOCK_DATABASES).await.map_err(&failed)?;
        }
        let off = async {
            if self.info.superuser {
                // Event triggers that an operator has made in the source would run with our rights.
                let off = format!(
                    "SET LOCAL lock_timeout = {}; SET LOCAL session_replication_role = replica",
                    literal(LOCK_TIMEOUT)
                );
                transaction.batch_execute(&off).await.map_err(&failed)?;
            }
            Ok(())
        };
        // What lies beside the source is in its encoding, which is the copy's. Of what is sent at once the first fault counts:
        // what comes behind it says no more than that.
        let note = async {
            match noted {
                Some(noted) => Ok(noted),
                None => self.note(&transaction, mapping).await,
            }
        };
        let shared =
            async { if ahead.is_alike { Ok(None) } else { self.shared(&transaction, mapping).await.map(Some) } };
        let (off, schemas, noted, shared) = tokio::join!(off, self.schemas(&transaction, mapping), note, shared);
        off?;
        let (schemas, noted, shared) = (schemas?, noted?, shared?);
        let (owner, new_owner) = (ident(&source.owner_role), ident(&self.spec.names.owner_role));
        // Schemas first: whoever is given what is in one needs the right to create there.
        let mut statements = vec![lasting_later()];
        statements.extend(schemas.iter().map(|schema| format!("ALTER SCHEMA {schema} OWNER TO {new_owner}")));
        statements.push(format!("REASSIGN OWNED BY {owner} TO {new_owner}"));
        statements.extend(noted.databases.iter().map(|name| format!("ALTER DATABASE {name} OWNER TO {owner}")));
        transaction.batch_execute(&statements.join("; ")).await.map_err(&failed)?;
        let rights = async { Rights::read(&transaction, mapping, named).await.map_err(&failed) };
        let mappings = async {
            if named.user_mappings { self.user_mappings(&transaction, mapping).await } else { Ok(Vec::new()) }
        };
        let (mut rights, mappings) = try_join(rights, mappings).await?;
        if named.reader_owns {
            let reader = ident(&self.spec.names.readonly_role);
            let mut statements = rights.on_schemas(mapping);
            statements.push(format!("REASSIGN OWNED BY {} TO {reader}", ident(&source.readonly_role)));
            transaction.batch_execute(&statements.join("; ")).await.map_err(&failed)?;
            rights = Rights::read(&transaction, mapping, named).await.map_err(&failed)?;
        }
        self.carry(&transaction, "make the user mappings again", &mappings).await?;
        self.carry(&transaction, "set the settings of the database again", &noted.carried).await?;
        let mut statements = rights.statements(mapping);
        statements.push(format!("DROP OWNED BY {}", ident(&source.readonly_role)));
        statements.push(format!("DROP OWNED BY {owner}"));
        transaction.batch_execute(&statements.join("; ")).await.map_err(&failed)?;
        // What was taken away in shared objects is seen from outside as it was last, and stays so: it is ours until we are done.
        let shared = match shared {
            Some(shared) => shared,
            None => self.shared(&ahead.turn, mapping).await?,
        };
        let mut statements = shared.grants;
        let opens = self.opens_when_given();
        if opens {
            statements.extend(self.opening());
        }
        let statements = statements.join("; ");
        // What is asked behind them is not asked at all if one of them failed.
        let given = async { transaction.batch_execute(&statements).await.map_err(&failed) };
        let open = async { if opens { self.check_open(&transaction).await } else { Ok(()) } };
        let checked = self.check_given(&transaction, mapping, &shared.before);
        let (given, checked, open, seen) = tokio::join!(given, checked, open, self.look(&transaction));
        given?;
        checked?;
        open?;
        let seen = seen?;
        transaction.commit().await.map_err(&failed)?;
        Ok(seen)
    }

    async fn mapping<'b>(
        &'b self,
        turn: &Transaction<'_>,
        source: &'b SandboxNames,
    ) -> Result<Mapping<'b>, EngineError> {
        let [owner, reader] = [&source.owner_role, &source.readonly_role];
        let found = turn
            .query_typed(
                "SELECT rolname = $1, oid FROM pg_catalog.pg_roles WHERE rolname IN ($1, $2)",
                &[(owner, Type::NAME), (reader, Type::NAME)],
            )
            .await
            .map_err(refused("find the source's roles", self.profile()))?;
        let mut oids = Vec::new();
        for (role, is_owner) in [(owner, true), (reader, false)] {
            let oid = found.iter().find(|row| row.get::<_, bool>(0) == is_owner).map(|row| row.get(1));
            oids.push(oid.ok_or_else(|| EngineError::Refused {
                action: "give the copy to its roles",
                sqlstate: SqlState::UNDEFINED_OBJECT.code().to_owned(),
                detail: format!("role `{role}` of the source is gone"),
            })?);
        }
        Ok(Mapping { source, copy: &self.spec.names, oids })
    }

    /// Looks at what nobody then has to go in for again.
    async fn look(&self, transaction: &Transaction<'_>) -> Result<Seen, EngineError> {
        let known = self.source_bytes();
        let row = transaction
            .query_typed_one(
                "SELECT coalesce($1, pg_catalog.pg_database_size(pg_catalog.current_database())), \
                 ARRAY(SELECT extname::text FROM pg_catalog.pg_extension)",
                &[(&known, Type::INT8)],
            )
            .await
            .map_err(refused("measure the copy", self.profile()))?;
        Ok(Seen { bytes: u64::try_from(row.get::<_, i64>(0)).unwrap_or_default(), extensions: row.get(1) })
    }

    /// Returns the schemas that the source's owner owns here.
    async fn schemas(&self, transaction: &Transaction<'_>, mapping: &Mapping<'_>) -> Result<Vec<String>, EngineError> {
        let schemas = transaction
            .query_typed(
                "SELECT pg_catalog.quote_ident(nspname) FROM pg_catalog.pg_namespace WHERE nspowner = ($1::oid[])[1]",
                &[(&mapping.oids, Type::OID_ARRAY)],
            )
            .await
            .map_err(refused("find the schemas that change hands", self.profile()))?;
        Ok(schemas.iter().map(|row| row.get(0)).collect())
    }

    /// Notes what the source has beside its contents, and which databases change hands on the way.
    async fn note(&self, transaction: &Transaction<'_>, mapping: &Mapping<'_>) -> Result<Noted, EngineError> {
        let oids: [(&(dyn ToSql + Sync), Type); 1] = [(&mapping.oids, Type::OID_ARRAY)];
        let databases = transaction.query_typed(
            "SELECT pg_catalog.quote_ident(datname) FROM pg_catalog.pg_database WHERE datdba = ($1::oid[])[1]",
            &oids,
        );
        let failed = refused("note what the source's owner owns", self.profile());
        let databases = async { databases.await.map_err(failed) };
        let (databases, carried) = tokio::join!(databases, self.carried(transaction, mapping));
        Ok(Noted { databases: databases?.iter().map(|row| row.get(0)).collect(), carried: carried? })
    }

    /// Reads what the source's roles may do with shared objects.
    async fn shared(&self, transaction: &Transaction<'_>, mapping: &Mapping<'_>) -> Result<Shared, EngineError> {
        let oids: [(&(dyn ToSql + Sync), Type); 1] = [(&mapping.oids, Type::OID_ARRAY)];
        let parameters = if self.info.major >= 15 {
            "UNION ALL SELECT 'PARAMETER', pg_catalog.quote_ident(o.parname), o.paracl, 10::oid FROM d \
             JOIN pg_catalog.pg_parameter_acl o ON d.classid = 'pg_catalog.pg_parameter_acl'::pg_catalog.regclass \
             AND o.oid = d.objid "
        } else {
            ""
        };
        let sql = format!(
            "WITH d AS (SELECT DISTINCT classid, objid FROM pg_catalog.pg_shdepend WHERE dbid = 0 AND deptype = 'a' \
             AND refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass AND refobjid = ANY ($1)), \
             o (kind, name, acl, owner) AS (SELECT 'DATABASE', pg_catalog.quote_ident(o.datname), o.datacl, o.datdba \
             FROM d JOIN pg_catalog.pg_database o ON d.classid = 'pg_catalog.pg_database'::pg_catalog.regclass \
             AND o.oid = d.objid \
             UNION ALL SELECT 'TABLESPACE', pg_catalog.quote_ident(o.spcname), o.spcacl, o.spcowner FROM d \
             JOIN pg_catalog.pg_tablespace o ON d.classid = 'pg_catalog.pg_tablespace'::pg_catalog.regclass \
             AND o.oid = d.objid {parameters}) \
             SELECT o.kind, o.name, x.privilege_type, pg_catalog.pg_get_userbyid(x.grantee)::text, x.is_grantable \
             FROM o, pg_catalog.aclexplode(o.acl) x WHERE x.grantee = ANY ($1) AND x.grantee <> o.owner"
        );
        let grants = transaction.query_typed(&sql, &oids);
        let before = self.rights_of_source(transaction, mapping);
        let failed = refused("note what the source's roles have", self.profile());
        let (grants, before) = try_join(grants, before).await.map_err(failed)?;
        let grants = grants.iter().map(|row| {
            let (kind, name, right): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
            let option = if row.get(4) { " WITH GRANT OPTION" } else { "" };
            format!("GRANT {right} ON {kind} {name} TO {}{option}", ident(row.get(3)))
        });
        Ok(Shared { grants: grants.collect(), before })
    }

    async fn rights_of_source(
        &self,
        transaction: &Transaction<'_>,
        mapping: &Mapping<'_>,
    ) -> Result<Vec<String>, tokio_postgres::Error> {
        let rows = transaction
            .query_typed(
                "SELECT 'owner ' || datdba::text FROM pg_catalog.pg_database WHERE datname = $1 \
                 UNION ALL SELECT a::text FROM pg_catalog.pg_database, pg_catalog.unnest(datacl) a WHERE datname = $1 \
                 ORDER BY 1",
                &[(&mapping.source.database, Type::NAME)],
            )
            .await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Checks that nothing in the copy names the source's roles any more, and that the source is as it was.
    async fn check_given(
        &self,
        transaction: &Transaction<'_>,
        mapping: &Mapping<'_>,
        before: &[String],
    ) -> Result<(), EngineError> {
        let oids: [(&(dyn ToSql + Sync), Type); 1] = [(&mapping.oids, Type::OID_ARRAY)];
        let left = transaction.query_typed_one(
            "SELECT pg_catalog.count(*) FROM pg_catalog.pg_shdepend s JOIN pg_catalog.pg_database d ON d.oid = s.dbid \
             WHERE d.datname = pg_catalog.current_database() \
             AND s.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass AND s.refobjid = ANY ($1)",
            &oids,
        );
        let after = self.rights_of_source(transaction, mapping);
        let failed = refused("check what the source's roles have", self.profile());
        let (left, after) = futures_util::try_join!(left, after).map_err(failed)?;
        let left: i64 = left.get(0);
        let (sqlstate, detail) = if left > 0 {
            let detail = format!("{left} objects of the copy still name the source's roles");
            (SqlState::DEPENDENT_OBJECTS_STILL_EXIST, detail)
        } else if after != before {
            // By somebody who has changed them meanwhile, or by what was to undo our own change.
            (SqlState::T_R_SERIALIZATION_FAILURE, "the source's owner or rights would have changed".to_owned())
        } else {
            return Ok(());
        };
        Err(EngineError::Refused { action: "give the copy to its roles", sqlstate: sqlstate.code().to_owned(), detail })
    }
}

/// The key of the lock under which copies of one source take turns.
fn turn_key(source: &SandboxNames) -> i64 {
    let digest = Sha256::digest(format!("pgsandbox copy {}", source.database).as_bytes());
    digest.first_chunk().map_or(0, |bytes| i64::from_be_bytes(*bytes))
}
