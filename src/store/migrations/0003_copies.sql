-- What a sandbox is a copy of; and templates: databases that nobody enters, made and removed as sandboxes are.
alter table pgsandbox.sandboxes
    add column kind text not null default 'sandbox' check (kind in ('sandbox', 'template')),
    -- The sandbox or template that it was copied from, and the name that it had. Not a foreign key: it may be gone.
    add column source_id uuid,
    add column source_name text,
    -- Of a template: what its owner calls it.
    add column template_name text check (kind = 'template' or template_name is null);

-- Of two that are being made under one name, one becomes ready. What is being removed has given its name back.
create unique index templates_by_name on pgsandbox.sandboxes (prefix, owner, template_name)
    where kind = 'template' and state = 'ready';

create table pgsandbox.templates (
    sandbox_id uuid primary key references pgsandbox.sandboxes (id) on delete cascade,
    created_by text,
    notes      text,
    -- The server's major version, and the extensions with their versions, when it was made.
    major      integer not null,
    extensions jsonb not null
);
