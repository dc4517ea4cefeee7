-- Requests that a policy lets through only once another principal has approved them. What is asked and what was
-- approved is sealed: who can write here and has no key can approve nothing.
create table pgsandbox.approval_requests (
    id         uuid primary key,
    prefix     text not null,
    -- Of who asks, what for, and with which arguments; made with a key, so that nothing can be guessed from it.
    digest     bytea not null,
    -- Who asks, only to bound how much may wait.
    subject    text not null,
    sealed     bytea not null,
    asked_at   timestamptz(3) not null,
    expires_at timestamptz(3) not null,
    -- The request that was let through for it. Counts once.
    taken_by   uuid
);

create unique index approval_requests_waiting on pgsandbox.approval_requests (prefix, digest) where taken_by is null;

create table pgsandbox.approvals (
    request_id uuid not null references pgsandbox.approval_requests (id) on delete cascade,
    group_name text not null,
    sealed     bytea not null,
    expires_at timestamptz(3) not null,
    primary key (request_id, group_name)
);
