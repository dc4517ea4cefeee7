//! Rows that are to stay at the source stay there, in whatever tables they are kept.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::{Setup, reader_url, source};
use crate::harness;

const PARTS: &str = r#"
    CREATE SCHEMA "odd ""s""";
    CREATE TABLE ev (id int, secret text) PARTITION BY RANGE (id);
    CREATE TABLE ev1 PARTITION OF ev FOR VALUES FROM (0) TO (100);
    CREATE TABLE "odd ""s"""."Ev|2" PARTITION OF ev FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id);
    CREATE TABLE ev21 PARTITION OF "odd ""s"""."Ev|2" FOR VALUES FROM (100) TO (150);
    CREATE TABLE parent (secret text);
    CREATE TABLE child (more int) INHERITS (parent);
    CREATE TABLE grandchild () INHERITS (child);
    CREATE TABLE kept AS SELECT 7 AS v;
    INSERT INTO ev SELECT n, 'planted' FROM generate_series(1, 149) n;
    INSERT INTO parent VALUES ('planted');
    INSERT INTO child VALUES ('planted', 1);
    INSERT INTO grandchild SELECT 'planted', n FROM generate_series(1, 20000) n;
    ALTER TABLE ev21 ENABLE ROW LEVEL SECURITY;
"#;

#[test]
fn the_rows_of_a_table_stay_with_those_of_its_partitions_and_of_what_inherits() {
    for cluster in harness::clusters() {
        let prefix = format!("clonestay{}", cluster.major).leak();
        source(cluster, "stay", "", PARTS);
        let setup = Setup::on(cluster, prefix, &[("stay", reader_url(cluster, "stay"), json!({}))]);
        setup.refused(json!({"source": "stay", "excludeTableData": ["parent"]}), "permission_denied", "`public.ev21`");
        let result = setup.cloned(json!({"source": "stay", "excludeTableData": ["ev", "parent"]}));
        let sql =
            "SELECT (SELECT count(*) FROM ev)::text, (SELECT count(*) FROM parent)::text, (SELECT v FROM kept)::text";
        assert_eq!(setup.rows(&result["databaseName"], sql), [["0", "0", "7"]], "{}", cluster.major);
        let whole = rows_bytes(cluster);
        let told = result["sourceSizeBytes"].as_u64().unwrap();
        assert!(told + 900_000 < whole, "{told} of {whole}");
    }
}

fn rows_bytes(cluster: &harness::Cluster) -> u64 {
    super::rows(cluster, "stay", "SELECT pg_database_size(current_database())")[0][0].parse().unwrap()
}

#[test]
fn a_partition_made_between_the_look_and_the_dump_ends_the_clone() {
    let cluster = harness::cluster();
    source(cluster, "grows", "", PARTS);
    let mut setup = Setup::on(cluster, "clonegrows", &[("grows", reader_url(cluster, "grows"), json!({}))]);
    let bin = setup.home.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let real = |program: &str| cluster.bin_dir.join(program).display().to_string();
    let more = "CREATE TABLE ev3 PARTITION OF ev FOR VALUES FROM (200) TO (300); INSERT INTO ev VALUES (201, 'x'); \
                GRANT SELECT ON ev3 TO reader";
    let url = cluster.superuser_url().replace("/postgres?", "/grows?");
    let dump = format!(
        "#!/bin/sh\n[ -z \"$PGHOST\" ] || {} -qX '{url}' -c \"{more}\" >&2\nexec {} \"$@\"\n",
        real("psql"),
        real("pg_dump")
    );
    let restore = format!("#!/bin/sh\nexec {} \"$@\"\n", real("pg_restore"));
    for (program, script) in [("pg_dump", dump), ("pg_restore", restore)] {
        fs::write(bin.join(program), script).unwrap();
        fs::set_permissions(bin.join(program), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let name = format!("PGSANDBOX_POSTGRES_{}_BIN_DIR", cluster.major);
    setup.home = setup.home.with(&name, bin.to_str().unwrap());
    setup.refused(
        json!({"source": "grows", "excludeTableData": ["ev"]}),
        "busy",
        "`public.ev` of source `grows` came over",
    );
}
