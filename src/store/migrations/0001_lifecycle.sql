-- Sandboxes, the plans that make and remove them, and the servers that carry the plans out.
-- Everything is named with its schema; nothing depends on search_path.

create table pgsandbox.servers (
    -- Also the second half of the advisory lock that a live server holds.
    number       integer generated always as identity primary key,
    host         text not null,
    pid          integer not null,
    started_at   timestamptz not null default pg_catalog.now(),
    heartbeat_at timestamptz not null default pg_catalog.now()
);

create table pgsandbox.sandboxes (
    id              uuid primary key,
    -- Profiles that share a server are told apart by it.
    prefix          text not null,
    engine          text not null,
    -- Never given twice, not even after removal.
    database_name   text not null unique,
    owner_role      text not null unique,
    readonly_role   text not null unique,
    owner_sealed    bytea not null,
    readonly_sealed bytea not null,
    owner           text not null,
    subject         text not null,
    group_owner     text,
    labels          jsonb not null,
    hint            text,
    origin          text not null check (origin in ('empty', 'clone', 'fork', 'template')),
    extensions      text[] not null,
    state           text not null check (state in ('creating', 'ready', 'deleting', 'deleted', 'failed')),
    failure         text,
    bytes           bigint,
    measured_at     timestamptz,
    -- The most bytes that all sandboxes of its owner, and of its group owner, may hold: as decided when it was reserved
    -- or last written to. Null is no limit.
    owner_bytes_max bigint,
    group_bytes_max bigint,
    -- Whether the owner role cannot log in because of them. Written after it was done.
    login_withheld  boolean not null default false,
    -- Whole milliseconds, as the program keeps them: a page begins exactly after the row where the last one ended.
    created_at      timestamptz(3) not null,
    expires_at      timestamptz(3) not null,
    ended_at        timestamptz
);

create index sandboxes_of_owner on pgsandbox.sandboxes (prefix, owner) where state not in ('deleted', 'failed');
create index sandboxes_of_group on pgsandbox.sandboxes (prefix, group_owner) where state not in ('deleted', 'failed');
create index sandboxes_in_order on pgsandbox.sandboxes (prefix, created_at, id) where state not in ('deleted', 'failed');
create index sandboxes_by_expiry on pgsandbox.sandboxes (prefix, expires_at, id) where state = 'ready';
create index sandboxes_by_end on pgsandbox.sandboxes (ended_at) where state in ('deleted', 'failed');

create table pgsandbox.plans (
    id              uuid primary key,
    sandbox_id      uuid not null references pgsandbox.sandboxes (id) on delete cascade,
    kind            text not null check (kind in ('create', 'delete')),
    state           text not null check (state in ('running', 'undoing', 'done', 'undone')),
    -- The server that works on it, or null while it waits. Not a foreign key: servers come and go.
    holder          integer,
    -- Grows with every change of hands; a line or change of an older epoch is refused.
    epoch           bigint not null default 1,
    taken_at        timestamptz not null default pg_catalog.now(),
    request_id      uuid not null,
    attempts        integer not null default 0,
    next_attempt_at timestamptz not null default pg_catalog.now(),
    last_error      text,
    created_at      timestamptz not null default pg_catalog.now()
);

create unique index plans_open on pgsandbox.plans (sandbox_id) where state in ('running', 'undoing');
create index plans_due on pgsandbox.plans (next_attempt_at, created_at) where state in ('running', 'undoing');

create table pgsandbox.journal (
    plan_id uuid not null references pgsandbox.plans (id) on delete cascade,
    line    bigint generated always as identity,
    epoch   bigint not null,
    step    text not null,
    mark    text not null check (mark in ('intent', 'done', 'undo', 'undone')),
    at      timestamptz not null default pg_catalog.now(),
    primary key (plan_id, line)
);

create table pgsandbox.idempotency (
    prefix     text not null,
    subject    text not null,
    key        text not null,
    digest     bytea not null,
    sandbox_id uuid not null references pgsandbox.sandboxes (id) on delete cascade,
    expires_at timestamptz not null,
    primary key (prefix, subject, key)
);

create index idempotency_of_sandbox on pgsandbox.idempotency (sandbox_id);
create index idempotency_by_expiry on pgsandbox.idempotency (expires_at);
