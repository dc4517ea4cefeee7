-- Whether a change of the owner role's login was begun and is not noted: whether the role can log in is then not known,
-- and it is changed once more. Written before the change, and taken back in the statement that notes it.
alter table pgsandbox.sandboxes add column login_turning boolean not null default false;
