//! Two programs on one server: what one keeps in a sandbox for its next call is in nobody's way when the other copies it.

use serde_json::json;

use crate::harness::{block_on, clusters};
use crate::program::Stdio;
use crate::schema::{checksum, home, made, ok, refused, run};

#[test]
fn sessions_that_another_program_of_ours_keeps_are_put_aside_and_those_of_others_are_told() {
    for cluster in clusters() {
        let home = home(&[cluster], "aside");
        let mut server = Stdio::start(&home);
        let id = made(&mut server, &format!("on{}", cluster.major), "a", "create table t as select 1 as n");
        let select = json!({"databaseId": id, "sql": "select n from t", "readonly": true});
        ok(&mut server, "run_sql", &select);
        let before = checksum(&mut server, &id);
        // The owner's, the reader's, and what reads the catalogue wait in the one; the other finds them there.
        let mut other = Stdio::start(&home);
        let fork = json!({"databaseId": id, "nameHint": "b"});
        let copy = ok(&mut other, "fork_database", &fork)["databaseId"].as_str().unwrap().to_owned();
        assert_eq!(checksum(&mut other, &copy), before);
        ok(&mut server, "run_sql", &select);
        run(&mut server, &id, "insert into t values (2)");
        assert_eq!(checksum(&mut server, &id), before);
        ok(&mut other, "create_template_from_sandbox", &json!({"databaseId": id, "templateName": "aside"}));
        ok(&mut server, "run_sql", &select);
        ok(&mut other, "reset_database", &json!({"databaseId": copy}));
        // A session that does something is somebody's, whatever it is called, and so is one with another name.
        let credentials = json!({"databaseId": id, "includeCredentials": true});
        let url =
            ok(&mut server, "get_connection_string", &credentials)["connectionString"].as_str().unwrap().to_owned();
        let log_in = |name: &str| {
            let mut config: tokio_postgres::Config = url.parse().unwrap();
            config.application_name(name);
            config
        };
        for (name, first) in [("pgsandbox", "begin"), ("psql", "select 1")] {
            let error = block_on(async {
                let (client, connection) = log_in(name).connect(tokio_postgres::NoTls).await.unwrap();
                let connection = tokio::spawn(connection);
                client.batch_execute(first).await.unwrap();
                let error = refused(&mut other, "fork_database", &fork, "busy");
                client.batch_execute("select 1").await.unwrap();
                drop(client);
                connection.await.unwrap().ok();
                error
            });
            assert!(error["message"].as_str().unwrap().contains("1 other session"), "{name}: {error:#}");
        }
        let copy = ok(&mut other, "fork_database", &fork)["databaseId"].as_str().unwrap().to_owned();
        for id in [&copy, &id] {
            ok(&mut other, "delete_database", &json!({"databaseId": id, "wait": true}));
        }
    }
}
