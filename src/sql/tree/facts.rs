//! Walks a tree once and keeps what policies ask for.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::convert::Infallible;
use std::ops::ControlFlow;

use sqlparser::ast::{
    AlterIndexOperation, AlterTable, AlterTableOperation, ColumnOption, CommentObject, CopySource, CreateTable,
    CreateTableLikeKind, Expr, FromTable, Function, GrantObjects, Ident, ObjectName, ObjectNamePart, ObjectType, Query,
    RenameTableNameKind, Select, SelectFlavor, SetExpr, Statement, TableAlias, TableConstraint, TableFactor,
    TableObject, TableWithJoins, Visit, Visitor,
};

use super::super::words::{cut, fold, quoted_if_dotted};
use crate::model::{Access, Relation, StatementClass as Class};

/// What a tree says.
#[derive(Debug, Default)]
pub(in crate::sql) struct TreeFacts {
    /// The class, for statements that may be reads or hide writes.
    pub(in crate::sql) class: Option<Class>,
    /// Whether `relations` is complete.
    pub(in crate::sql) complete: bool,
    pub(in crate::sql) relations: BTreeSet<Relation>,
    pub(in crate::sql) calls: BTreeSet<Call>,
    /// Names of table aliases, WITH items and written tables: with a column list they look like a call.
    pub(in crate::sql) column_lists: BTreeSet<String>,
    /// Whether an UPDATE or DELETE anywhere has no WHERE.
    pub(in crate::sql) no_where: bool,
    /// Whether a statement that changes data is inside another.
    pub(in crate::sql) nested_write: bool,
}

/// A called function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::sql) struct Call {
    /// The schema, folded, where one is written.
    pub(in crate::sql) schema: Option<String>,
    /// The name, folded.
    pub(in crate::sql) name: String,
    /// Whether the name is written in quotes, and so is no construct of the grammar.
    pub(in crate::sql) quoted: bool,
}

/// Gathers the facts of a statement; `None` if the tree is of another database's grammar.
pub(super) fn gather(statement: &Statement) -> Option<TreeFacts> {
    let mut walk = Walk { outside: outside_access(statement), ..Walk::default() };
    walk.facts.complete = names_all_relations(statement);
    add_unvisited(statement, &mut walk);
    let ControlFlow::Continue(()) = statement.visit(&mut walk);
    if walk.foreign {
        return None;
    }
    walk.facts.class = match statement {
        Statement::Query(_) => Some(walk.query_class()),
        Statement::Insert(_) | Statement::Update(_) | Statement::Delete(_) | Statement::Merge(_) => Some(Class::Write),
        _ => None,
    };
    Some(walk.facts)
}

/// Returns what is done to a relation that is named outside queries.
fn outside_access(statement: &Statement) -> Access {
    match statement {
        Statement::Truncate(_) => Access::Writes,
        Statement::Copy { to: false, .. } => Access::Writes,
        Statement::Query(_)
        | Statement::Insert(_)
        | Statement::Update(_)
        | Statement::Delete(_)
        | Statement::Merge(_)
        | Statement::Copy { .. }
        | Statement::Lock(_)
        | Statement::Call(_) => Access::Reads,
        _ => Access::Defines,
    }
}

/// Returns whether every relation that the statement names is found by the walk or by [`add_unvisited`].
fn names_all_relations(statement: &Statement) -> bool {
    match statement {
        Statement::Query(_)
        | Statement::Insert(_)
        | Statement::Update(_)
        | Statement::Delete(_)
        | Statement::Merge(_)
        | Statement::Truncate(_)
        | Statement::Copy { .. }
        | Statement::Call(_)
        | Statement::Lock(_)
        | Statement::CreateTable(_)
        | Statement::CreateView(_)
        | Statement::CreateIndex(_)
        | Statement::CreatePolicy(_)
        | Statement::AlterPolicy(_)
        | Statement::CreateTrigger(_)
        | Statement::CreateSchema { .. }
        | Statement::CreateType { .. }
        | Statement::CreateDomain(_)
        | Statement::CreateExtension(_)
        | Statement::CreateRole(_)
        | Statement::CreateDatabase { .. }
        | Statement::CreateServer(_)
        | Statement::CreateOperator(_)
        | Statement::AlterType(_)
        | Statement::AlterRole { .. }
        | Statement::AlterSchema(_)
        | Statement::DropFunction(_)
        | Statement::DropProcedure { .. }
        | Statement::DropDomain(_)
        | Statement::DropExtension(_)
        | Statement::DropOperator(_) => true,
        Statement::AlterTable(alter) => alter.operations.iter().all(is_about_the_table_alone),
        Statement::AlterIndex { .. } => true,
        Statement::CreateSequence { sequence_options, .. } => sequence_options.is_empty(),
        Statement::Drop { .. } => true,
        Statement::DropTrigger(drop) => drop.table_name.is_some(),
        Statement::DropPolicy(_) => true,
        Statement::Comment { object_type, .. } => !matches!(object_type, CommentObject::Column),
        Statement::Grant(grant) => {
            matches!(
                grant.objects,
                Some(
                    GrantObjects::Tables(_)
                        | GrantObjects::Schemas(_)
                        | GrantObjects::Databases(_)
                        | GrantObjects::Functions(_)
                        | GrantObjects::Procedures(_)
                        | GrantObjects::Sequences(_)
                )
            )
        }
        Statement::GrantRole(_) | Statement::RevokeRole(_) => true,
        Statement::Revoke(revoke) => {
            matches!(
                revoke.objects,
                Some(
                    GrantObjects::Tables(_)
                        | GrantObjects::Schemas(_)
                        | GrantObjects::Databases(_)
                        | GrantObjects::Functions(_)
                        | GrantObjects::Procedures(_)
                        | GrantObjects::Sequences(_)
                )
            )
        }
        _ => false,
    }
}

fn is_about_the_table_alone(operation: &AlterTableOperation) -> bool {
    use AlterTableOperation as Op;
    matches!(
        operation,
        Op::AddConstraint { .. }
            | Op::AddColumn { .. }
            | Op::DropConstraint { .. }
            | Op::DropColumn { .. }
            | Op::AlterColumn { .. }
            | Op::RenameColumn { .. }
            | Op::RenameTable { .. }
            | Op::RenameConstraint { .. }
            | Op::ValidateConstraint { .. }
            | Op::EnableRowLevelSecurity
            | Op::DisableRowLevelSecurity
            | Op::ForceRowLevelSecurity
            | Op::NoForceRowLevelSecurity
            | Op::EnableTrigger { .. }
            | Op::DisableTrigger { .. }
            | Op::EnableAlwaysTrigger { .. }
            | Op::EnableReplicaTrigger { .. }
            | Op::ReplicaIdentity { .. }
            | Op::OwnerTo { .. }
            | Op::SetLogged
            | Op::SetUnlogged
            | Op::SetOptionsParens { .. }
    )
}

/// Adds names that the parser's visitor does not call relations.
fn add_unvisited(statement: &Statement, walk: &mut Walk) {
    match statement {
        Statement::CreateTable(table) => add_table_parts(table, walk),
        Statement::AlterTable(table) => add_alter_parts(table, walk),
        Statement::CreateTrigger(trigger) => {
            walk.relation(&trigger.table_name, Access::Defines);
            if let Some(name) = &trigger.referenced_table_name {
                walk.relation(name, Access::Reads);
            }
        }
        Statement::AlterIndex { name, operation } => {
            let AlterIndexOperation::RenameIndex { index_name } = operation;
            walk.relation(name, Access::Defines);
            walk.neighbour(name, index_name);
        }
        Statement::CreateIndex(index) => {
            // It is made in the schema of its table.
            if let Some(name) = &index.name {
                walk.neighbour(&index.table_name, name);
            }
        }
        Statement::CreateSequence { name, .. } => walk.relation(name, Access::Defines),
        Statement::Drop { object_type, names, .. } => {
            let is_relation = matches!(
                object_type,
                ObjectType::Table
                    | ObjectType::ForeignTable
                    | ObjectType::View
                    | ObjectType::MaterializedView
                    | ObjectType::Index
                    | ObjectType::Sequence
            );
            for name in names.iter().filter(|_| is_relation) {
                walk.relation(name, Access::Defines);
            }
        }
        Statement::DropTrigger(drop) => {
            if let Some(name) = &drop.table_name {
                walk.relation(name, Access::Defines);
            }
        }
        Statement::DropPolicy(drop) => walk.relation(&drop.table_name, Access::Defines),
        Statement::Comment { object_type, object_name, .. } => {
            if matches!(
                object_type,
                CommentObject::Table
                    | CommentObject::View
                    | CommentObject::MaterializedView
                    | CommentObject::ForeignTable
                    | CommentObject::Index
                    | CommentObject::Sequence
            ) {
                walk.relation(object_name, Access::Defines);
            }
        }
        Statement::Copy { source: CopySource::Table { table_name, .. }, to, .. } => {
            walk.relation(table_name, if *to { Access::Reads } else { Access::Writes });
        }
        Statement::Grant(grant) => add_granted(grant.objects.as_ref(), walk),
        Statement::Revoke(revoke) => add_granted(revoke.objects.as_ref(), walk),
        Statement::Call(function) => walk.call(function),
        _ => {}
    }
}

fn add_granted(objects: Option<&GrantObjects>, walk: &mut Walk) {
    if let Some(GrantObjects::Tables(names) | GrantObjects::Sequences(names)) = objects {
        for name in names {
            walk.relation(name, Access::Defines);
        }
    }
}

fn add_table_parts(table: &CreateTable, walk: &mut Walk) {
    for parent in table.inherits.iter().flatten() {
        walk.relation(parent, Access::Defines);
    }
    if let Some(CreateTableLikeKind::Parenthesized(like) | CreateTableLikeKind::Plain(like)) = &table.like {
        walk.relation(&like.name, Access::Reads);
    }
    for constraint in &table.constraints {
        add_constraint(constraint, walk);
    }
    // `LIKE t` among columns: the word is reserved, and the parser takes it for a column's name.
    let is_like = |name: &Ident| name.quote_style.is_none() && name.value.eq_ignore_ascii_case("like");
    if table.columns.iter().any(|column| is_like(&column.name)) {
        walk.facts.complete = false;
    }
    for column in table.columns.iter().flat_map(|c| &c.options) {
        add_column_option(&column.option, walk);
    }
}

fn add_alter_parts(table: &AlterTable, walk: &mut Walk) {
    for operation in &table.operations {
        match operation {
            AlterTableOperation::RenameTable { table_name } => {
                let (RenameTableNameKind::To(new) | RenameTableNameKind::As(new)) = table_name;
                walk.neighbour(&table.name, new);
            }
            AlterTableOperation::AddConstraint { constraint, .. } => add_constraint(constraint, walk),
            AlterTableOperation::AddColumn { column_def, .. } => {
                for option in &column_def.options {
                    add_column_option(&option.option, walk);
                }
            }
            _ => {}
        }
    }
}

fn add_constraint(constraint: &TableConstraint, walk: &mut Walk) {
    if let TableConstraint::ForeignKey(key) = constraint {
        walk.relation(&key.foreign_table, Access::Reads);
    }
}

fn add_column_option(option: &ColumnOption, walk: &mut Walk) {
    if let ColumnOption::ForeignKey(key) = option {
        walk.relation(&key.foreign_table, Access::Reads);
    }
}

/// The state of one walk through a tree.
#[derive(Debug)]
struct Walk {
    facts: TreeFacts,
    outside: Access,
    /// Addresses of names whose access is known from the statement around them; `None` for no relation.
    known: HashMap<usize, Option<Access>>,
    scopes: Vec<Scope>,
    into: bool,
    lock: bool,
    write: bool,
    /// Whether the parser took something for the grammar of another database.
    foreign: bool,
}

impl Default for Walk {
    fn default() -> Self {
        Self {
            facts: TreeFacts::default(),
            outside: Access::Reads,
            known: HashMap::new(),
            scopes: Vec::new(),
            into: false,
            lock: false,
            write: false,
            foreign: false,
        }
    }
}

/// The names that the WITH clause of one query makes.
#[derive(Debug, Default)]
struct Scope {
    visible: HashSet<String>,
    /// Items that become visible once their own query, at this address, is done: a name in it means something else.
    pending: HashMap<usize, String>,
}

fn address<T>(value: &T) -> usize {
    std::ptr::from_ref(value).addr()
}

impl Walk {
    fn query_class(&self) -> Class {
        if self.into {
            Class::Ddl
        } else if self.write {
            Class::Write
        } else if self.lock {
            Class::ReadLock
        } else {
            Class::Read
        }
    }

    fn relation(&mut self, name: &ObjectName, access: Access) {
        match parts(name) {
            Some(parts) => {
                self.facts.relations.insert(Relation { name: joined(&parts), access });
            }
            None => self.facts.complete = false,
        }
    }

    /// Adds what appears under the name `new` in the schema of `name`.
    fn neighbour(&mut self, name: &ObjectName, new: &ObjectName) {
        let new = new.0.last().and_then(ObjectNamePart::as_ident).map(folded);
        let (Some(mut parts), Some(new)) = (parts(name), new) else {
            self.facts.complete = false;
            return;
        };
        parts.pop();
        parts.push(new);
        self.facts.relations.insert(Relation { name: joined(&parts), access: Access::Defines });
    }

    fn call(&mut self, function: &Function) {
        self.called(&function.name);
    }

    fn called(&mut self, name: &ObjectName) {
        let Some(parts) = parts(name) else {
            self.facts.complete = false;
            return;
        };
        let quoted = name.0.last().and_then(ObjectNamePart::as_ident).is_some_and(|i| i.quote_style.is_some());
        if let Some((name, schema)) = parts.split_last() {
            let schema = (!schema.is_empty()).then(|| joined(schema));
            self.facts.calls.insert(Call { schema, name: name.clone(), quoted });
        }
    }

    fn called_plainly(&mut self, name: &str) {
        self.facts.calls.insert(Call { schema: None, name: name.to_owned(), quoted: false });
    }

    fn written(&mut self, table: &TableFactor) {
        match table {
            TableFactor::Table { name, .. } => {
                self.known.insert(address(name), Some(Access::Writes));
            }
            _ => self.facts.complete = false,
        }
    }

    fn written_tables(&mut self, tables: &[TableWithJoins]) {
        for table in tables {
            self.written(&table.relation);
        }
    }

    fn is_with_item(&self, name: &ObjectName) -> bool {
        let [ObjectNamePart::Identifier(ident)] = name.0.as_slice() else { return false };
        let folded = folded(ident);
        self.scopes.iter().any(|scope| scope.visible.contains(&folded))
    }

    fn alias(&mut self, alias: &TableAlias) {
        if !alias.columns.is_empty() {
            self.facts.column_lists.insert(quoted_if_dotted(&folded(&alias.name)));
        }
    }
}

impl Visitor for Walk {
    type Break = Infallible;

    fn pre_visit_statement(&mut self, statement: &Statement) -> ControlFlow<Infallible> {
        let changes_data = match statement {
            Statement::Insert(insert) => {
                match &insert.table {
                    TableObject::TableName(name) => {
                        self.known.insert(address(name), Some(Access::Writes));
                        self.facts.column_lists.extend(parts(name).map(|parts| joined(&parts)));
                    }
                    _ => self.facts.complete = false,
                }
                true
            }
            Statement::Update(update) => {
                self.written(&update.table.relation);
                self.facts.no_where |= update.selection.is_none();
                true
            }
            Statement::Delete(delete) => {
                let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &delete.from;
                self.written_tables(from);
                for table in &delete.tables {
                    self.relation(table, Access::Writes);
                }
                self.facts.no_where |= delete.selection.is_none();
                true
            }
            Statement::Merge(merge) => {
                self.written(&merge.table);
                true
            }
            _ => false,
        };
        self.write |= changes_data;
        self.facts.nested_write |= changes_data && self.scopes.len() > 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Infallible> {
        self.lock |= !query.locks.is_empty();
        self.foreign |= query.for_clause.is_some()
            || query.settings.is_some()
            || query.format_clause.is_some()
            || !query.pipe_operators.is_empty();
        let mut scope = Scope::default();
        if let Some(with) = &query.with {
            for item in &with.cte_tables {
                self.alias(&item.alias);
                let name = folded(&item.alias.name);
                if with.recursive {
                    scope.visible.insert(name);
                } else {
                    scope.pending.insert(address(item.query.as_ref()), name);
                }
            }
        }
        self.scopes.push(scope);
        if has_bare_table(&query.body) {
            self.facts.complete = false;
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<Infallible> {
        self.scopes.pop();
        if let Some(scope) = self.scopes.last_mut()
            && let Some(name) = scope.pending.remove(&address(query))
        {
            scope.visible.insert(name);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<Infallible> {
        self.foreign |= is_foreign_select(select);
        if let Some(into) = &select.into {
            self.into = true;
            for target in &into.targets {
                let idents = match target {
                    Expr::Identifier(ident) => std::slice::from_ref(ident),
                    Expr::CompoundIdentifier(idents) => idents.as_slice(),
                    _ => {
                        self.facts.complete = false;
                        continue;
                    }
                };
                let name = joined(&idents.iter().map(folded).collect::<Vec<_>>());
                self.facts.relations.insert(Relation { name, access: Access::Defines });
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, name: &ObjectName) -> ControlFlow<Infallible> {
        match self.known.get(&address(name)) {
            Some(None) => {}
            Some(Some(access)) => self.relation(name, *access),
            None if self.scopes.is_empty() => self.relation(name, self.outside),
            None if self.is_with_item(name) => {}
            None => self.relation(name, Access::Reads),
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<Infallible> {
        let alias = match table {
            TableFactor::Table { name, args, alias, .. } => {
                if args.is_some() {
                    self.called(name);
                    self.known.insert(address(name), None);
                }
                alias
            }
            TableFactor::Function { name, alias, .. } => {
                self.called(name);
                alias
            }
            TableFactor::UNNEST { alias, .. } => {
                self.facts.calls.insert(Call { schema: None, name: "unnest".to_owned(), quoted: false });
                alias
            }
            TableFactor::Derived { alias, .. }
            | TableFactor::TableFunction { alias, .. }
            | TableFactor::NestedJoin { alias, .. }
            | TableFactor::JsonTable { alias, .. }
            | TableFactor::XmlTable { alias, .. } => alias,
            _ => {
                self.facts.complete = false;
                return ControlFlow::Continue(());
            }
        };
        if let Some(alias) = alias {
            self.alias(alias);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Infallible> {
        match expr {
            Expr::Function(function) => self.call(function),
            // Ordinary functions of which the parser makes more; their SQL forms (`FROM`, `PLACING`) call nothing else.
            Expr::Substring { shorthand: true, .. } => self.called_plainly("substr"),
            Expr::Substring { special: true, .. }
            | Expr::Substring { substring_from: None, substring_for: None, .. } => {
                self.called_plainly("substring");
            }
            Expr::Ceil { .. } => self.called_plainly("ceil"),
            Expr::Floor { .. } => self.called_plainly("floor"),
            Expr::Convert { .. } => self.called_plainly("convert"),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Returns whether the parser took a clause for one that only other databases have.
fn is_foreign_select(select: &Select) -> bool {
    select.top.is_some()
        || select.select_modifiers.is_some()
        || select.exclude.is_some()
        || select.prewhere.is_some()
        || select.qualify.is_some()
        || select.value_table_mode.is_some()
        || select.flavor != SelectFlavor::Standard
        || !select.lateral_views.is_empty()
        || !select.connect_by.is_empty()
        || !select.cluster_by.is_empty()
        || !select.distribute_by.is_empty()
        || !select.sort_by.is_empty()
}

/// Returns whether a part of a query is `TABLE t` in the parser's own form, whose name the walk does not see.
fn has_bare_table(body: &SetExpr) -> bool {
    let mut left = vec![body];
    while let Some(body) = left.pop() {
        match body {
            SetExpr::Table(_) => return true,
            SetExpr::SetOperation { left: a, right: b, .. } => left.extend([a.as_ref(), b.as_ref()]),
            _ => {}
        }
    }
    false
}

fn folded(ident: &Ident) -> String {
    match ident.quote_style {
        Some(_) => cut(ident.value.as_str().into()).into_owned(),
        None => fold(&ident.value).into_owned(),
    }
}

/// Folds a name's parts; the database's name, which can only be the current one, is left out.
fn parts(name: &ObjectName) -> Option<Vec<String>> {
    let parts: Option<Vec<_>> = name.0.iter().map(|part| part.as_ident().map(folded)).collect();
    parts.map(|mut parts| {
        parts.drain(..parts.len().saturating_sub(2));
        parts
    })
}

fn joined(parts: &[String]) -> String {
    parts.iter().map(|part| quoted_if_dotted(part)).collect::<Vec<_>>().join(".")
}
