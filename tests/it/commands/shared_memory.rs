//! The memory that a command's processes share is the command's own, and nobody else's.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use pgsandbox::command::Namespace;

use super::{Ground, confines};

const PLACE: &str = "/dev/shm";
/// How long a command may take to be seen.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns whether a command has a namespace here, with mounts of its own.
async fn apart() -> bool {
    let said = Ground::new().output("readlink /proc/self/ns/pid; readlink /proc/self/ns/mnt").await;
    let own = ["pid", "mnt"].map(|name| fs::read_link(format!("/proc/self/ns/{name}")).unwrap());
    let apart = said.lines().zip(&own).all(|(theirs, own)| Path::new(theirs) != own);
    if !apart {
        crate::harness::not_tried("this kernel gives no namespaces of process numbers and mounts");
    }
    apart && Path::new(PLACE).is_dir()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_memory_is_seen_by_no_other_command_and_not_outside() {
    if !apart().await {
        return;
    }
    let (first, second) = (Ground::new(), Ground::new());
    let name = format!("pgsandbox-{}", std::process::id());
    let outside = Path::new(PLACE).join(format!("{name}-outside"));
    fs::write(&outside, "of the machine").unwrap();
    let holds =
        format!("ls -A {PLACE}; echo mine >{PLACE}/{name}; touch up; until [ -e go ]; do :; done; cat {PLACE}/*");
    let looks = async {
        let until = Instant::now() + PATIENCE;
        while !first.root.join("repo/up").exists() && Instant::now() < until {
            tokio::task::yield_now().await;
        }
        let inside = second.output(&format!("ls -A {PLACE}; cat {PLACE}/{name} 2>/dev/null; exit 0")).await;
        let shown = Path::new(PLACE).join(&name).exists();
        fs::write(first.root.join("repo/go"), "").unwrap();
        (inside, shown)
    };
    let (held, (inside, shown)) = tokio::join!(first.output(&holds), looks);
    let kept = fs::read_to_string(&outside);
    fs::remove_file(&outside).unwrap();
    assert_eq!((held.as_str(), inside.as_str(), shown), ("mine\n", "", false));
    assert_eq!(kept.unwrap(), "of the machine");
    assert!(!Path::new(PLACE).join(&name).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_of_python_share_semaphores() {
    let script = "command -v python3 >/dev/null || { echo none; exit 0; }\nexec python3 -c \"import multiprocessing as m\nwith \
                  m.Lock(), m.Pool(2) as pool: print(sum(pool.map(abs, [1, -2])))\"";
    if !apart().await {
        return;
    }
    match Ground::new().output(script).await.as_str() {
        "none\n" => crate::harness::not_tried("`python3` is not installed here"),
        said => assert_eq!(said, "3\n"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_memory_has_a_bound() {
    if !apart().await {
        return;
    }
    let bytes = 256 << 20;
    for (bytes, fits) in [(bytes, true), (bytes + 4096, false)] {
        let script = format!("fallocate -l {bytes} {PLACE}/x 2>/dev/null && echo fits; exit 0");
        let said = Ground::new().output(&script).await;
        assert_eq!(said == "fits\n", fits, "{bytes}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_a_command_has_no_namespace_it_reaches_no_shared_memory() {
    if !confines() {
        return;
    }
    let mut ground = Ground::new();
    ground.settings.namespace = Namespace::Never;
    let name = format!("{PLACE}/pgsandbox-{}-denied", std::process::id());
    let script = format!("echo x 2>/dev/null >{name} && echo written; ls {PLACE} 2>/dev/null && echo listed; exit 0");
    assert_eq!(ground.output(&script).await, "");
    assert!(!Path::new(&name).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_command_works_with_is_not_covered() {
    if !apart().await {
        return;
    }
    let mut ground = Ground::new();
    let dir = tempfile::tempdir_in(PLACE).unwrap();
    fs::write(dir.path().join("tool"), "a tool of the operator's").unwrap();
    ground.settings.further.readable.push(dir.path().to_path_buf());
    let said = ground.output(&format!("cat {}/tool", dir.path().display())).await;
    assert_eq!(said, "a tool of the operator's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segments_and_queues_that_the_kernel_numbers_are_the_commands_own() {
    if !apart().await {
        return;
    }
    let said = || async { Ground::new().output("readlink /proc/self/ns/ipc; wc -l </proc/sysvipc/shm").await };
    let ours = fs::read_link("/proc/self/ns/ipc").unwrap();
    for said in [said().await, said().await] {
        let (theirs, segments) = said.trim().split_once('\n').unwrap_or_else(|| panic!("{said}"));
        assert_ne!(Path::new(theirs), ours);
        // A heading, and nothing that others made.
        assert_eq!(segments, "1");
    }
}
