//! What Postgres' parse tree says of a statement: the other opinion to which ours is held.
//!
//! The walk knows nothing of the grammar but what a node holds: whatever is a `RangeVar` names a relation, whatever
//! is an `InsertStmt` writes, at any depth and in any statement.

use std::collections::BTreeSet;

use pgsandbox::model::StatementClass as Class;

use crate::oracle::Node;

/// Facts of one statement.
#[derive(Debug, Default)]
pub struct Facts {
    /// The kind of the outermost node.
    pub root: String,
    /// Data is changed somewhere in it.
    pub writes: bool,
    /// Data is changed by a statement inside another.
    pub nested_write: bool,
    /// A relation is made of a query.
    pub into: bool,
    /// Rows are locked.
    pub locks: bool,
    /// An UPDATE or DELETE anywhere has no WHERE.
    pub no_where: bool,
    /// Names as we write them; `true` where rows of it are changed.
    pub relations: BTreeSet<(String, bool)>,
    /// Schema and name; what the grammar itself calls is left out.
    pub calls: BTreeSet<(Option<String>, String)>,
    /// An operator is named with a schema that is not Postgres' own.
    pub foreign_operator: bool,
}

/// Gathers the facts of a statement, a node in its wrapper.
pub fn facts(statement: &Node) -> Facts {
    let root = statement.unwrapped().map_or("", |(kind, _)| kind).to_owned();
    let mut walk = Walk { facts: Facts { root, ..Facts::default() }, with_items: Vec::new() };
    walk.node(statement);
    walk.facts
}

struct Walk {
    facts: Facts,
    with_items: Vec<String>,
}

impl Walk {
    fn node(&mut self, node: &Node) {
        match node {
            Node::Array(items) => items.iter().for_each(|item| self.node(item)),
            Node::Object(fields) => match node.unwrapped() {
                Some((kind, inner)) if kind.starts_with(|c: char| c.is_ascii_uppercase()) => self.kind(kind, inner),
                _ => self.fields("", node, fields),
            },
            _ => {}
        }
    }

    fn kind(&mut self, kind: &str, node: &Node) {
        let Node::Object(fields) = node else { return self.node(node) };
        match kind {
            "InsertStmt" | "UpdateStmt" | "DeleteStmt" | "MergeStmt" => {
                self.facts.writes = true;
                let bare = matches!(kind, "UpdateStmt" | "DeleteStmt") && node.get("whereClause").is_none();
                self.facts.no_where |= bare;
            }
            "FuncCall" => self.call(node),
            "RangeTableSample" => {
                let names = node.get("method").map(Node::strings).unwrap_or_default();
                if !matches!(names.as_slice(), ["bernoulli" | "system"]) {
                    self.named_call(&names);
                }
            }
            "A_Expr" | "SubLink" | "SortBy" => {
                for key in ["name", "operName", "useOp"] {
                    let names = node.get(key).map(Node::strings).unwrap_or_default();
                    self.facts.foreign_operator |= names.len() > 1 && names[0] != "pg_catalog";
                }
            }
            "CallStmt" => {
                if let Some(call) = node.get("funccall") {
                    self.call(call);
                }
            }
            "DropStmt" => self.dropped(node),
            // Names of constraints, in the grammar of relations.
            "ConstraintsSetStmt" => return,
            "CreateTableAsStmt" => self.facts.into = true,
            _ => {}
        }
        self.fields(kind, node, fields);
    }

    fn fields(&mut self, kind: &str, node: &Node, fields: &[(String, Node)]) {
        if node.get("relname").is_some() && node.get("relpersistence").is_some() {
            return self.relation(node, false);
        }
        let changes = matches!(kind, "InsertStmt" | "UpdateStmt" | "DeleteStmt" | "MergeStmt");
        let items_before = self.with_items.len();
        if let Some(with) = node.get("withClause") {
            let recursive = with.is_set("recursive");
            let ctes: Vec<_> = with
                .get("ctes")
                .map(Node::items)
                .unwrap_or_default()
                .iter()
                .filter_map(|c| c.get("CommonTableExpr"))
                .collect();
            let names: Vec<_> = ctes.iter().map(|c| c.text("ctename").unwrap_or_default().to_owned()).collect();
            if recursive {
                self.with_items.extend(names.iter().cloned());
            }
            for (cte, name) in ctes.iter().zip(names) {
                let query = cte.get("ctequery").and_then(Node::unwrapped).map_or("", |(kind, _)| kind);
                self.facts.nested_write |= matches!(query, "InsertStmt" | "UpdateStmt" | "DeleteStmt" | "MergeStmt");
                self.node(cte);
                if !recursive {
                    self.with_items.push(name);
                }
            }
        }
        for (key, value) in fields {
            match key.as_str() {
                "withClause" => {}
                // A composite type, which only shares the grammar of relations.
                "typevar" => {}
                "relation" if node.text("objtype") == Some("OBJECT_TYPE") => {}
                "relation" if node.text("relationType") == Some("OBJECT_TYPE") => {}
                "relation" if changes => self.relation(value, true),
                "relation" if kind == "CopyStmt" => self.relation(value, node.is_set("is_from")),
                "relations" if kind == "TruncateStmt" => {
                    value.items().iter().filter_map(|r| r.get("RangeVar")).for_each(|r| self.relation(r, true));
                }
                "intoClause" => {
                    self.facts.into = true;
                    self.node(value);
                }
                "lockingClause" => {
                    self.facts.locks = true;
                    // The names in it are of relations of the query.
                }
                _ => self.node(value),
            }
        }
        self.with_items.truncate(items_before);
    }

    fn relation(&mut self, range: &Node, written: bool) {
        let Some(name) = range.text("relname") else { return };
        match range.text("schemaname") {
            Some(schema) => {
                let name = format!("{}.{}", quoted(schema), quoted(name));
                self.facts.relations.insert((name, written));
            }
            None if !written && self.with_items.iter().any(|item| item == name) => {}
            None => {
                self.facts.relations.insert((quoted(name), written));
            }
        }
    }

    fn call(&mut self, call: &Node) {
        // EXTRACT(…), AT TIME ZONE, LIKE … ESCAPE and so on always mean Postgres' own functions.
        let names = call.get("funcname").map(Node::strings).unwrap_or_default();
        let escape = matches!(names.as_slice(), ["pg_catalog", "like_escape" | "similar_to_escape"]);
        if call.text("funcformat") != Some("COERCE_SQL_SYNTAX") && !escape {
            self.named_call(&names);
        }
    }

    fn named_call(&mut self, names: &[&str]) {
        if let Some((name, before)) = names.split_last() {
            let schema = before.last().map(|schema| (*schema).to_owned());
            self.facts.calls.insert((schema, (*name).to_owned()));
        }
    }

    fn dropped(&mut self, node: &Node) {
        let (is_relation, of_relation) = match node.text("removeType").unwrap_or("OBJECT_ACCESS_METHOD") {
            "OBJECT_TABLE"
            | "OBJECT_VIEW"
            | "OBJECT_INDEX"
            | "OBJECT_SEQUENCE"
            | "OBJECT_MATVIEW"
            | "OBJECT_FOREIGN_TABLE" => (true, false),
            "OBJECT_TRIGGER" | "OBJECT_POLICY" | "OBJECT_RULE" => (false, true),
            _ => return,
        };
        for object in node.get("objects").map(Node::items).unwrap_or_default() {
            let mut names =
                object.get("List").and_then(|list| list.get("items")).map(Node::strings).unwrap_or_default();
            if of_relation {
                names.pop();
            }
            if is_relation || of_relation {
                let two = names.len().saturating_sub(2);
                let name = names[two..].iter().map(|name| quoted(name)).collect::<Vec<_>>().join(".");
                self.facts.relations.insert((name, false));
            }
        }
    }
}

/// Writes a name as the program does.
pub fn quoted(name: &str) -> String {
    if name.contains(['.', '"']) { format!("\"{}\"", name.replace('"', "\"\"")) } else { name.to_owned() }
}

/// Returns the class of a statement by the kind of its node.
pub fn class(statement: &Node, facts: &Facts) -> Option<Class> {
    use Class as C;
    let (kind, node) = statement.unwrapped()?;
    let query = |facts: &Facts| match facts {
        Facts { into: true, .. } => C::Ddl,
        Facts { writes: true, .. } => C::Write,
        Facts { locks: true, .. } => C::ReadLock,
        _ => C::Read,
    };
    Some(match kind {
        "SelectStmt" => query(facts),
        "InsertStmt" | "UpdateStmt" | "DeleteStmt" | "MergeStmt" | "TruncateStmt" => C::Write,
        "CopyStmt" => {
            let target = match (node.is_set("is_program") || node.get("filename").is_some(), node.is_set("is_from")) {
                (true, _) => C::CopyServer,
                (false, true) => C::CopyIn,
                (false, false) => C::CopyOut,
            };
            match node.get("query") {
                Some(_) if target != C::CopyServer && query(facts) != C::Read => query(facts),
                _ => target,
            }
        }
        "ExplainStmt" => {
            if !runs(node) {
                return Some(C::Explain);
            }
            let inner = node.get("query")?;
            return class(inner, facts);
        }
        "VariableShowStmt" => C::Show,
        "VariableSetStmt" => match node.text("name") {
            Some("TRANSACTION") => C::Transaction,
            Some("SESSION CHARACTERISTICS" | "TRANSACTION SNAPSHOT") => return None,
            _ => C::Session,
        },
        "DiscardStmt" => C::Session,
        "TransactionStmt" | "ConstraintsSetStmt" => C::Transaction,
        "DoStmt" | "CallStmt" => C::Procedural,
        "VacuumStmt" | "ReindexStmt" | "ClusterStmt" | "CheckPointStmt" | "RefreshMatViewStmt" => C::Maintenance,
        "ListenStmt" | "NotifyStmt" | "UnlistenStmt" => C::Notify,
        "LockStmt" => C::Lock,
        "PrepareStmt" => match query(facts) {
            C::Read => C::Prepared,
            other => other,
        },
        "ExecuteStmt" | "DeallocateStmt" => C::Prepared,
        "DeclareCursorStmt" => match query(facts) {
            C::Read => C::Cursor,
            other => other,
        },
        "FetchStmt" | "ClosePortalStmt" => C::Cursor,
        "LoadStmt" | "SecLabelStmt" => C::Utility,
        "GrantStmt" | "GrantRoleStmt" | "AlterDefaultPrivilegesStmt" | "ReassignOwnedStmt" | "DropOwnedStmt" => {
            C::AccessControl
        }
        "CreateRoleStmt"
        | "AlterRoleStmt"
        | "AlterRoleSetStmt"
        | "DropRoleStmt"
        | "CreatedbStmt"
        | "AlterDatabaseStmt"
        | "AlterDatabaseSetStmt"
        | "AlterDatabaseRefreshCollStmt"
        | "DropdbStmt"
        | "CreateTableSpaceStmt"
        | "AlterTableSpaceOptionsStmt"
        | "DropTableSpaceStmt"
        | "AlterSystemStmt" => C::Cluster,
        "CreatePublicationStmt"
        | "AlterPublicationStmt"
        | "CreateSubscriptionStmt"
        | "AlterSubscriptionStmt"
        | "DropSubscriptionStmt" => C::Replication,
        "CreateFunctionStmt"
        | "AlterFunctionStmt"
        | "CreateTrigStmt"
        | "CreateEventTrigStmt"
        | "AlterEventTrigStmt"
        | "RuleStmt"
        | "CreateCastStmt"
        | "CreateOpClassStmt"
        | "CreateOpFamilyStmt"
        | "AlterOpFamilyStmt"
        | "AlterOperatorStmt"
        | "CreatePLangStmt"
        | "CreateTransformStmt"
        | "CreateExtensionStmt"
        | "AlterExtensionStmt"
        | "AlterExtensionContentsStmt"
        | "CreateForeignServerStmt"
        | "AlterForeignServerStmt"
        | "CreateFdwStmt"
        | "AlterFdwStmt"
        | "CreateUserMappingStmt"
        | "AlterUserMappingStmt"
        | "DropUserMappingStmt"
        | "CreateAmStmt" => C::Code,
        "CreateStmt"
        | "CreateForeignTableStmt"
        | "IndexStmt"
        | "ViewStmt"
        | "CreateTableAsStmt"
        | "CreateSeqStmt"
        | "AlterSeqStmt"
        | "CompositeTypeStmt"
        | "CreateEnumStmt"
        | "CreateRangeStmt"
        | "AlterEnumStmt"
        | "AlterTypeStmt"
        | "CreateDomainStmt"
        | "AlterDomainStmt"
        | "AlterCollationStmt"
        | "CreateConversionStmt"
        | "CreateStatsStmt"
        | "AlterStatsStmt"
        | "CreatePolicyStmt"
        | "AlterPolicyStmt"
        | "CommentStmt"
        | "AlterTSConfigurationStmt"
        | "AlterTSDictionaryStmt"
        | "AlterTableStmt"
        | "ImportForeignSchemaStmt"
        | "AlterTableMoveAllStmt" => C::Ddl,
        "DefineStmt" => match node.text("kind").unwrap_or_default() {
            "OBJECT_AGGREGATE" | "OBJECT_OPERATOR" => C::Code,
            _ => C::Ddl,
        },
        "DropStmt" => of_object(node.text("removeType"))?,
        "RenameStmt" => of_object(node.text("renameType"))?,
        "AlterObjectSchemaStmt" | "AlterOwnerStmt" => of_object(node.text("objectType"))?,
        _ => return None,
    })
}

/// Returns the class that statements about a kind of object have.
fn of_object(kind: Option<&str>) -> Option<Class> {
    Some(match kind? {
        "OBJECT_ROLE" | "OBJECT_DATABASE" | "OBJECT_TABLESPACE" => Class::Cluster,
        "OBJECT_PUBLICATION" | "OBJECT_SUBSCRIPTION" => Class::Replication,
        "OBJECT_ACCESS_METHOD"
        | "OBJECT_AGGREGATE"
        | "OBJECT_CAST"
        | "OBJECT_EVENT_TRIGGER"
        | "OBJECT_EXTENSION"
        | "OBJECT_FDW"
        | "OBJECT_FOREIGN_SERVER"
        | "OBJECT_FUNCTION"
        | "OBJECT_LANGUAGE"
        | "OBJECT_OPCLASS"
        | "OBJECT_OPERATOR"
        | "OBJECT_OPFAMILY"
        | "OBJECT_PROCEDURE"
        | "OBJECT_ROUTINE"
        | "OBJECT_RULE"
        | "OBJECT_TRANSFORM"
        | "OBJECT_TRIGGER"
        | "OBJECT_USER_MAPPING" => Class::Code,
        _ => Class::Ddl,
    })
}

/// Returns whether an EXPLAIN runs its statement: the last `ANALYZE` counts.
fn runs(explain: &Node) -> bool {
    let options = explain.get("options").map(Node::items).unwrap_or_default();
    let analyze = options.iter().filter_map(|o| o.get("DefElem")).rfind(|o| o.text("defname") == Some("analyze"));
    let Some(analyze) = analyze else { return false };
    match analyze.get("arg").and_then(Node::unwrapped) {
        None => true,
        Some(("String", value)) => {
            !matches!(value.text("sval").map(str::to_ascii_lowercase).as_deref(), Some("off" | "false"))
        }
        Some(("Boolean", value)) => value.is_set("boolval"),
        Some(("Integer", value)) => value.number("ival") != 0,
        Some(_) => true,
    }
}
