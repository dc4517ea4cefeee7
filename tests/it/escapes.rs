//! The escape room: what a sandbox, its credentials, a caller, a policy, a file or a person next door may try to get
//! out, in or further, each attempt asserted on the true state that the cluster's superuser reads.
//!
//! `tests/proofs/escapes` plays this and prints how many there were of each category.

mod attempts;
mod room;
mod state;

use std::time::Instant;

use attempts::categories;
use room::Room;

use crate::harness::own_clusters;

/// Attempts that are SQL, on one server with one kind of admin.
const SQL_ATTEMPTS_MIN: usize = 500;

fn sql_attempts(superuser: bool) {
    for cluster in own_clusters() {
        let began = Instant::now();
        let mut room = Room::new(&cluster, superuser);
        for category in categories() {
            room.set_up(&category.setup);
            for attempt in category.attempts.iter().filter(|attempt| attempt.since <= cluster.major) {
                for way in &attempt.ways {
                    room.try_sql(&category.name, attempt, way);
                }
            }
        }
        println!("{:?}", began.elapsed());
        room.report.finish(SQL_ATTEMPTS_MIN);
    }
}

#[test]
fn no_sql_leads_out_of_a_sandbox_of_a_superuser_admin() {
    sql_attempts(true);
}

#[test]
fn no_sql_leads_out_of_a_sandbox_of_an_ordinary_admin() {
    sql_attempts(false);
}
