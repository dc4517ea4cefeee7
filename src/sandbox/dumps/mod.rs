//! Templates as files: written of a template, and a template made of one, on this server or another.
//!
//! A template is dumped from a copy of it that nobody else can enter and that is taken back like a creation that failed. A
//! file is restored as the role that owns what is made of it, after it was compared with its checksum. Files belong to
//! their owner, and are found by name alone.

mod file;
mod shelf;
mod transport;

use std::io::{Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::file::{Manifest, ManifestExtension, ManifestSetting};
pub use self::shelf::KeptDump;
use self::shelf::{OpenDump, Shelf, ShelfError};
use super::bounds::check_template_name;
use super::clones::parted;
use super::core::{bare_spec, require};
use super::create::{Beginning, CREATE_DEADLINE};
use super::schema::{DIGEST_VERSION, SchemaDigest, hex};
use super::templates::{LIMITS, template_reservation};
use super::work::Work;
use super::{Core, Profile, TemplateRequest};
use crate::admission::{Grant, Permit};
use crate::engine::Contents;
use crate::engine::postgres::{Compare, DumpJob, Dumped, InFile, RestoreJob, Restored, Wanted};
use crate::model::{Code, Failure, Impact, Origin, Progress, Schema, SchemaFilter, SchemaKind, SchemaObject, fault};
use crate::secret::random_password;
use crate::store::{Template, TemplateRefused};

/// An export as it is asked for.
#[derive(Clone, Debug)]
pub struct ExportRequest {
    /// The template.
    pub name: String,
    /// Whether an exported template of that name gives way to it.
    pub replace: bool,
    /// How long it may take.
    pub time: Duration,
}

/// An import as it is asked for.
#[derive(Clone, Debug)]
pub struct ImportRequest {
    /// The exported template.
    pub from: String,
    /// The template that is made.
    pub template: TemplateRequest,
    /// Extensions that may be made.
    pub allowed_extensions: Vec<String>,
    /// How long it may take.
    pub time: Duration,
}

/// A template that was made of a file.
#[derive(Debug)]
pub struct Imported {
    /// It.
    pub template: Template,
    /// What was known of the file.
    pub manifest: Manifest,
    /// What came of it.
    pub restored: Restored,
    /// Whether its schema is the exported one to the letter.
    pub same_schema: bool,
}

/// Kinds of objects that no dump carries, or that are no part of what is restored.
const NOT_CARRIED: [SchemaKind; 7] = [
    SchemaKind::Database,
    SchemaKind::EventTrigger,
    SchemaKind::ForeignDataWrapper,
    SchemaKind::ForeignServer,
    SchemaKind::UserMapping,
    SchemaKind::Publication,
    SchemaKind::DefaultPrivileges,
];

impl Core {
    /// Says where exported templates are kept. What was said first stands.
    pub fn keep_dumps_in(&self, folder: PathBuf) {
        self.inner().dumps.set(folder).ok();
    }

    /// Removes what exports have left that were killed on the way.
    pub(super) fn sweep_dumps(&self) {
        if let Some(root) = self.inner().dumps.get().cloned() {
            // Nothing waits for it.
            drop(tokio::task::spawn_blocking(move || shelf::sweep_all(&root)));
        }
    }

    /// Writes a template of the caller's to a private file of theirs.
    ///
    /// # Errors
    /// `template_not_found`; there is a file of that name; `quota_exceeded`; or it cannot be dumped: then nothing is left.
    pub async fn export_template<T>(
        &self,
        permit: &Permit<T>,
        request: ExportRequest,
        progress: Arc<dyn Progress>,
        cancel: CancellationToken,
    ) -> Result<KeptDump, Failure> {
        let grant = permit.grant().clone();
        let looked = async {
            require(permit, Impact::Creates, None)?;
            self.find_export(&grant, &request).await
        };
        let (profile, template, room) = grant.course.refusing(looked.await)?;
        grant.course.is_about(template.sandbox.id);
        let core = self.clone();
        self.detached(async move {
            let course = &grant.course;
            let unfinished = Arc::new(course.refusing(core.on_dumps(&grant, |shelf| shelf.begin()).await)?);
            let failed = |error: std::io::Error| {
                Failure::new(Code::Internal, "the file cannot be written").audit(error.to_string())
            };
            let mut file = unfinished.file().map_err(failed)?;
            file.seek(SeekFrom::Start(file::DUMP_AT)).map_err(failed)?;
            let shown = format!("template `{}`", template.name);
            let (progress, within) = parted(progress);
            let wanted = Wanted { shown, time: request.time, cancel: cancel.clone(), progress: within };
            let job = Arc::new(DumpJob::new(wanted, file, room));
            let mut beginning = Beginning::template(&template);
            if let Contents::Copy { dump, .. } = &mut beginning.contents {
                *dump = Some(Arc::clone(&job));
            }
            // Never ready, so the name stays the template's.
            let asked = TemplateRequest { name: template.name.clone(), replace: true, ..TemplateRequest::default() };
            let bytes = template.sandbox.bytes.unwrap_or_default();
            let reservation = template_reservation(&profile, &grant, &beginning, &asked, Vec::new());
            let _running = core.enter(reservation.plan);
            let reserved = profile.store.reserve_template(&reservation, true, bytes, LIMITS).await;
            let (row, held) = match reserved {
                Ok(reserved) => reserved,
                Err(error @ TemplateRefused::Reserve(_)) => return Err(error.into()),
                Err(error) => return course.refusing(Err(error.into())),
            };
            course.acts();
            course.is_about(row.id);
            let mut spec = bare_spec(&row, random_password()?, random_password()?);
            spec.contents = beginning.contents;
            let work = Work { profile: Arc::clone(&profile), held, spec, anew: false };
            let deadline = Instant::now() + fault::within(CREATE_DEADLINE) + job.left();
            let purpose = "it was made to be exported, and is no longer needed";
            work.make_for_a_while(purpose, &*progress, &cancel, deadline).await?;
            let Some(dumped) = job.done() else {
                return Err(Failure::new(Code::Internal, "the template was not dumped"));
            };
            let at_ms = grant.now.unix_ms().try_into().unwrap_or_default();
            let manifest = manifest(&template, dumped, at_ms);
            let (name, replace) = (request.name, request.replace);
            let kept = KeptDump { bytes: file::DUMP_AT + dumped.bytes, name: name.clone(), manifest: manifest.clone() };
            core.on_dumps(&grant, move |shelf| shelf.finish(&unfinished, &name, &manifest, replace)).await?;
            Ok(kept)
        })
        .await
    }

    /// Says what [`Core::export_template`] would refuse with before its first act.
    ///
    /// # Errors
    /// Fails as the export would.
    pub async fn foresee_export(&self, grant: &Grant, request: &ExportRequest) -> Result<(), Failure> {
        self.find_export(grant, request).await.map(drop)
    }

    async fn find_export(
        &self,
        grant: &Grant,
        request: &ExportRequest,
    ) -> Result<(Arc<Profile>, Template, u64), Failure> {
        let (profile, template) = self.find_granted_template(grant, &request.name).await?;
        let (name, replace) = (request.name.clone(), request.replace);
        let room = self.on_dumps(grant, move |shelf| shelf.room(&name, replace)).await?;
        Ok((profile, template, room))
    }

    /// Makes a template of an exported one of the caller's. One that it replaces is removed once it is ready, not before.
    ///
    /// # Errors
    /// `template_not_found`; `template_restore_failed` if the file is not whole, or does not become what it should;
    /// `version_mismatch`, `extension_not_allowed`, `quota_exceeded` and more: then nothing is left.
    pub async fn import_template<T>(
        &self,
        permit: &Permit<T>,
        request: ImportRequest,
        progress: Arc<dyn Progress>,
        cancel: CancellationToken,
    ) -> Result<Imported, Failure> {
        let grant = permit.grant().clone();
        let looked = async {
            require(permit, Impact::Creates, None)?;
            let profile = self.find_import(&grant, &request).await?;
            let name = request.from.clone();
            let whole = self.on_dumps(&grant, move |shelf| {
                let open = shelf.open(&name)?;
                file::verify(&open.file, &open.manifest).map_err(|why| ShelfError::Unsound { name, why })?;
                Ok(open)
            });
            Ok((profile, whole.await?))
        };
        let (profile, open) = grant.course.refusing(looked.await)?;
        let core = self.clone();
        self.detached(async move { core.import(&profile, &grant, request, open, progress, &cancel).await }).await
    }

    async fn import(
        &self,
        profile: &Arc<Profile>,
        grant: &Grant,
        request: ImportRequest,
        open: OpenDump,
        progress: Arc<dyn Progress>,
        cancel: &CancellationToken,
    ) -> Result<Imported, Failure> {
        let course = &grant.course;
        let OpenDump { file, manifest } = open;
        let (progress, within) = parted(progress);
        let examined = self.examined(profile, grant, &request, file, &manifest, within, cancel).await;
        let (job, planned) = course.refusing(examined)?;
        let contents = Contents::Restore(Arc::clone(&job));
        let labels = manifest.labels.clone().into_iter().collect();
        let beginning = Beginning { contents, origin: Origin::Clone, source: None, labels };
        let asked = noted(&request.template, &manifest);
        let reservation = template_reservation(profile, grant, &beginning, &asked, planned);
        let owner = &grant.principal.owner;
        let replaced = profile.store.template(owner, &asked.name).await?;
        let _running = self.enter(reservation.plan);
        let bytes = manifest.database_bytes;
        let (row, held) = match profile.store.reserve_template(&reservation, asked.replace, bytes, LIMITS).await {
            Ok(reserved) => reserved,
            Err(error @ TemplateRefused::Reserve(_)) => return Err(error.into()),
            Err(error) => return course.refusing(Err(error.into())),
        };
        course.acts();
        course.is_about(row.id);
        // Nobody is told them, and they end before it is ready.
        let mut spec = bare_spec(&row, random_password()?, random_password()?);
        spec.contents = beginning.contents;
        let work = Work { profile: Arc::clone(profile), held, spec, anew: false };
        let deadline = Instant::now() + fault::within(CREATE_DEADLINE) + job.left();
        work.make(&*progress, cancel, deadline).await?;
        let Some(restored) = job.done().cloned() else {
            return Err(Failure::new(Code::Internal, "the template was not restored"));
        };
        if let Err(error) = profile.store.measured(row.id, Some(restored.database_bytes)).await {
            tracing::warn!(sandbox = %row.id, %error, "the size of a template could not be noted");
        }
        if let Some(replaced) = replaced {
            // It is marked for removal with the new one's being ready; upkeep goes on where this does not.
            if let Err(failure) = self.remove(profile, replaced.sandbox.id, grant, false, || {}).await {
                tracing::warn!(sandbox = %replaced.sandbox.id, %failure, "a replaced template could not be removed now");
            }
        }
        let template = super::copies::find_template(profile, owner, &asked.name).await?;
        let same_schema =
            manifest.digest_version == DIGEST_VERSION && digest(&carried(&restored.schema)) == manifest.schema_digest;
        Ok(Imported { template, manifest, restored, same_schema })
    }

    /// Looks at what an exported template needs on a server, and what its extensions are to be there.
    #[expect(clippy::too_many_arguments, reason = "each is of another kind")]
    async fn examined(
        &self,
        profile: &Profile,
        grant: &Grant,
        request: &ImportRequest,
        file: std::fs::File,
        manifest: &Manifest,
        progress: Arc<dyn Progress>,
        cancel: &CancellationToken,
    ) -> Result<(Arc<RestoreJob>, Vec<(String, String)>), Failure> {
        let shown = format!("exported template `{}`", request.from);
        let wanted = Wanted { shown, time: request.time, cancel: cancel.clone(), progress };
        let held: u64 = profile
            .store
            .templates(&grant.principal.owner)
            .await?
            .iter()
            .filter(|template| !(request.template.replace && template.name == request.template.name))
            .filter_map(|template| template.sandbox.bytes)
            .sum();
        let named = |e: &ManifestExtension| (e.name.clone(), e.schema.clone());
        let dump = InFile {
            file,
            at: file::DUMP_AT,
            bytes: manifest.dump_bytes,
            sha256: manifest.dump_sha256.clone(),
            major: manifest.postgres_major,
            extensions: manifest.extensions.iter().map(named).collect(),
            allowed_extensions: request.allowed_extensions.clone(),
            settings: manifest.settings.iter().map(|s| (s.name.clone(), s.value.clone())).collect(),
            comment: manifest.comment.clone(),
            database_bytes: manifest.database_bytes,
            bytes_max: LIMITS.bytes.saturating_sub(held),
            compare: compare(manifest.clone()),
        };
        let job = profile.engine.examine_dump(wanted, dump).await.map_err(Failure::from)?;
        let planned = if manifest.extensions.is_empty() {
            Vec::new()
        } else {
            let offered = profile.engine.available_extensions().await.map_err(Failure::from)?;
            let known =
                |offer: &&crate::engine::ExtensionInfo| manifest.extensions.iter().any(|e| e.name == offer.name);
            offered.iter().filter(known).map(|offer| (offer.name.clone(), offer.default_version.clone())).collect()
        };
        Ok((Arc::new(job), planned))
    }

    /// Returns the extensions that an exported template of the caller's names.
    ///
    /// # Errors
    /// `template_not_found`, or its manifest cannot be read.
    pub async fn extensions_of_exported(&self, grant: &Grant, name: &str) -> Result<Vec<String>, Failure> {
        check_template_name(name)?;
        let name = name.to_owned();
        let open = self.on_dumps(grant, move |shelf| shelf.open(&name)).await?;
        Ok(open.manifest.extensions.into_iter().map(|extension| extension.name).collect())
    }

    /// Says what [`Core::import_template`] would refuse with before its first act; the file's checksum is not compared.
    ///
    /// # Errors
    /// Fails as the import would.
    pub async fn foresee_import(&self, grant: &Grant, request: &ImportRequest) -> Result<(), Failure> {
        let profile = self.find_import(grant, request).await?;
        let name = request.from.clone();
        let OpenDump { file, manifest } = self.on_dumps(grant, move |shelf| shelf.open(&name)).await?;
        let (progress, cancel): (Arc<dyn Progress>, _) = (Arc::new(crate::model::Silent), CancellationToken::new());
        let (job, planned) = self.examined(&profile, grant, request, file, &manifest, progress, &cancel).await?;
        let labels = manifest.labels.clone().into_iter().collect();
        let beginning = Beginning { contents: Contents::Restore(job), origin: Origin::Clone, source: None, labels };
        let asked = noted(&request.template, &manifest);
        let reservation = template_reservation(&profile, grant, &beginning, &asked, planned);
        let bytes = manifest.database_bytes;
        profile.store.rehearse_template(&reservation, asked.replace, bytes, LIMITS).await.map_err(Failure::from)
    }

    async fn find_import(&self, grant: &Grant, request: &ImportRequest) -> Result<Arc<Profile>, Failure> {
        check_template_name(&request.from)?;
        check_template_name(&request.template.name)?;
        let profile = self.profile(grant.profile.as_deref().unwrap_or(self.default_profile()))?;
        let name = request.from.clone();
        self.on_dumps(grant, move |shelf| shelf.find(&name)).await?;
        self.open(&profile).await?;
        Ok(profile)
    }

    /// Returns the caller's exported templates, by name.
    ///
    /// # Errors
    /// Fails if the folder cannot be read.
    pub async fn exported_templates<T>(&self, permit: &Permit<T>) -> Result<Vec<KeptDump>, Failure> {
        require(permit, Impact::Reads, None)?;
        self.exported_of(permit.grant()).await
    }

    /// Returns the exported templates of whom a permit is for.
    ///
    /// # Errors
    /// Fails if the folder cannot be read.
    pub async fn exported_of(&self, grant: &Grant) -> Result<Vec<KeptDump>, Failure> {
        if self.inner().dumps.get().is_none() {
            return Ok(Vec::new());
        }
        self.on_dumps(grant, |shelf| shelf.list()).await
    }

    /// Removes an exported template of the caller's. Templates that were made of it stay.
    ///
    /// # Errors
    /// `template_not_found`.
    pub async fn delete_exported<T>(&self, permit: &Permit<T>, name: &str) -> Result<(), Failure> {
        let grant = permit.grant();
        let found = async {
            require(permit, Impact::Destroys, None)?;
            self.foresee_delete_exported(grant, name).await
        };
        grant.course.refusing(found.await)?;
        let name = name.to_owned();
        grant.course.acts();
        self.on_dumps(grant, move |shelf| shelf.remove(&name)).await
    }

    /// Says what [`Core::delete_exported`] would refuse with.
    ///
    /// # Errors
    /// Fails as the deletion would.
    pub async fn foresee_delete_exported(&self, grant: &Grant, name: &str) -> Result<(), Failure> {
        check_template_name(name)?;
        let name = name.to_owned();
        self.on_dumps(grant, move |shelf| shelf.find(&name)).await
    }

    /// Works on a principal's files, beside the threads that answer calls.
    async fn on_dumps<R: Send + 'static>(
        &self,
        grant: &Grant,
        work: impl FnOnce(&Shelf) -> Result<R, ShelfError> + Send + 'static,
    ) -> Result<R, Failure> {
        let Some(root) = self.inner().dumps.get() else {
            return Err(Failure::new(Code::Internal, "this program keeps no exported templates"));
        };
        let shelf = Shelf::new(root, &grant.principal.owner);
        let done = tokio::task::spawn_blocking(move || work(&shelf)).await;
        match done {
            Ok(result) => result.map_err(Failure::from),
            Err(error) => {
                Err(Failure::new(Code::Internal, "the work on exported templates broke off").audit(error.to_string()))
            }
        }
    }
}

/// Returns what is noted of a template: what its caller says, or else what was noted when it was exported.
fn noted(asked: &TemplateRequest, manifest: &Manifest) -> TemplateRequest {
    TemplateRequest {
        name: asked.name.clone(),
        created_by: asked.created_by.clone().or_else(|| manifest.created_by.clone()),
        notes: asked.notes.clone().or_else(|| manifest.notes.clone()),
        replace: asked.replace,
    }
}

fn manifest(template: &Template, dumped: &Dumped, exported_at_ms: i64) -> Manifest {
    let carried = carried(&dumped.schema);
    let [encoding, collation, character_type] = dumped.locale.clone();
    let extension = |[name, version, schema]: &[String; 3]| ManifestExtension {
        name: name.clone(),
        version: version.clone(),
        schema: schema.clone(),
    };
    let setting = |(name, value): &(String, String)| ManifestSetting { name: name.clone(), value: value.clone() };
    Manifest {
        template_name: template.name.clone(),
        created_by: template.created_by.clone(),
        notes: template.notes.clone(),
        labels: template.sandbox.labels.iter().cloned().collect(),
        exported_at_ms,
        postgres_version: dumped.server_version.clone(),
        postgres_major: dumped.server_major,
        dump_tool_version: dumped.tool_version.clone(),
        encoding,
        collation,
        character_type,
        extensions: dumped.extensions.iter().map(extension).collect(),
        settings: dumped.settings.iter().map(setting).collect(),
        comment: dumped.comment.clone(),
        digest_version: DIGEST_VERSION,
        schema_digest: digest(&carried),
        shape_digest: digest(&shape(&carried)),
        tables: dumped.report.tables,
        rows: dumped.report.rows,
        rows_counted: dumped.report.counted,
        database_bytes: dumped.database_bytes,
        left_out: dumped.left_out.clone(),
        dump_bytes: dumped.bytes,
        dump_sha256: hex(&dumped.sha256, usize::MAX),
    }
}

fn digest(schema: &Schema) -> String {
    SchemaDigest::of(schema, &SchemaFilter::default()).checksum
}

/// Returns what of a schema a dump carries to another server.
fn carried(schema: &Schema) -> Schema {
    let kept = schema.objects().iter().filter(|object| !NOT_CARRIED.contains(&object.key.kind));
    Schema::new(kept.map(|object| reduced(object, |name| is_carried(object.key.kind, name))).collect())
}

fn is_carried(kind: SchemaKind, attribute: &str) -> bool {
    match attribute {
        "grants" | "tablespace" => false,
        "version" => kind != SchemaKind::Extension,
        _ => true,
    }
}

/// Returns which objects there are, and of what type columns are: texts of expressions may be written otherwise by the
/// server that reads them again.
fn shape(schema: &Schema) -> Schema {
    let column = |object: &SchemaObject, name: &str| object.key.kind == SchemaKind::Column && name == "type";
    Schema::new(schema.objects().iter().map(|object| reduced(object, |name| column(object, name))).collect())
}

fn reduced(object: &SchemaObject, keeps: impl Fn(&str) -> bool) -> SchemaObject {
    let attributes = object.attributes.iter().filter(|(name, _)| keeps(name)).cloned().collect();
    SchemaObject { attributes, ..object.clone() }
}

/// Returns what finds that a restored template is the exported one: the same objects, and as many rows.
fn compare(manifest: Manifest) -> Compare {
    Compare(Box::new(move |schema, report| {
        let differs = |what: String| {
            let text = format!("what was restored is not what was exported: {what}; nothing of it is left");
            Err(Failure::new(Code::TemplateRestoreFailed, text))
        };
        if report.tables != manifest.tables {
            return differs(format!("it has {} tables instead of {}", report.tables, manifest.tables));
        }
        if report.counted && manifest.rows_counted && report.rows != manifest.rows {
            return differs(format!("it has {} rows instead of {}", report.rows, manifest.rows));
        }
        if manifest.digest_version == DIGEST_VERSION && digest(&shape(&carried(schema))) != manifest.shape_digest {
            return differs("objects are missing or beside it, or a column has another type".to_owned());
        }
        Ok(())
    }))
}
