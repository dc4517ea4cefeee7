//! Values as clients read them, most of which make a double of every number.

use serde_json::json;

use crate::hostile::code;
use crate::program::{Home, Stdio, Transport};

#[test]
fn json_that_a_clients_doubles_would_change_is_text_and_says_so() {
    let home = Home::with_cluster();
    let mut stdio = Stdio::start(&home);
    let id = stdio.call("create_database", &json!({}))["result"]["databaseId"].clone();
    let mut sql = |sql: &str| {
        let reply = stdio.call("run_sql", &json!({"databaseId": id, "sql": sql}));
        assert_eq!(code(&reply), "ok", "{reply:#}");
        (reply["result"]["resultSets"][0].clone(), reply["warnings"].clone())
    };
    let (set, warnings) = sql(
        "select * from (values ('{\"id\": 9007199254740993}'::jsonb, '{\"n\": 9007199254740991}'::jsonb, 'null'::json, \
         array['1'::jsonb, '1.10']), ('\"text\"', '\"text\"', '7', null), (null, null, null, null)) v (big, fits, empty, list)",
    );
    let expected = json!([
        ["{\"id\": 9007199254740993}", {"n": 9_007_199_254_740_991_u64}, "null", ["1", "1.10"]],
        ["\"text\"", "text", "7", null],
        [null, null, null, null],
    ]);
    assert_eq!(set["rows"], expected, "{set:#}");
    let as_text: Vec<_> = set["columns"].as_array().unwrap().iter().map(|column| column.get("jsonAsText")).collect();
    assert_eq!(as_text, [Some(&json!(true)), None, Some(&json!(true)), Some(&json!(true))]);
    assert!(warnings.as_array().unwrap().len() == 1 && warnings[0].to_string().contains("2^53"), "{warnings}");
    // Objects that this program's own JSON would take for a number, or for other JSON.
    let (set, _) =
        sql("select jsonb_build_object('$serde_json::private::' || k, '1') from unnest('{Number,RawValue}'::text[]) k");
    let expected = [r#"{"$serde_json::private::Number": "1"}"#, r#"{"$serde_json::private::RawValue": "1"}"#];
    assert_eq!(set["rows"], json!([[expected[0]], [expected[1]]]), "{set:#}");
    let (set, warnings) = sql("select '{\"a\": [0.1, -5, 1.5e3]}'::jsonb");
    assert_eq!((&set["rows"], &warnings), (&json!([[{"a": [0.1, -5, 1500]}]]), &json!([])), "{set:#}");
    assert!(stdio.finish().success());
}
