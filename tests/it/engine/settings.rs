//! The start-up settings exist on the servers they are sent to, and a session has them whatever its database says.

use pgsandbox::engine::postgres::{Purpose, as_options_text, startup_options};

use crate::harness::{LIMITED, PASSWORD, clusters};

#[tokio::test]
async fn every_setting_is_known_to_its_major_and_outranks_the_database() {
    for cluster in clusters() {
        for purpose in [Purpose::Admin, Purpose::Owner, Purpose::ReadOnly { bypasses_row_security: false }] {
            let options = startup_options(cluster.major, purpose);
            let mut config = tokio_postgres::Config::new();
            config.host("127.0.0.1").port(cluster.port).user(LIMITED).password(PASSWORD).dbname(LIMITED);
            config.options(as_options_text(&options));
            let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            let source = "SELECT source FROM pg_settings WHERE lower(name) = lower($1)";
            for (name, _) in &options {
                // `role` is not in the view
                let Some(row) = client.query_opt(source, &[name]).await.unwrap() else {
                    assert_eq!(name, "role");
                    continue;
                };
                let source: String = row.get(0);
                assert_eq!(source, "client", "{name} on {}", cluster.major);
            }
        }
    }
}
