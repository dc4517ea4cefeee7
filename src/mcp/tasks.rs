//! Calls that go on after they were answered with a handle, for clients that know what to do with one.
//!
//! A board belongs to one connection, and each task on it to the owner who began it: an id from another connection, or of
//! another owner, is one that is not there. What has ended is kept for a while and then forgotten.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::model::{Task, TaskStatus, Tasks, Timestamp};

/// Tasks on one board; a call that finds it full is answered when it is done.
const TASKS_MAX: usize = 32;
/// How long a task is kept after it has ended.
const KEPT: Duration = Duration::from_secs(600);
/// How long a client is to wait before it asks again, in milliseconds.
const POLL_INTERVAL_MS: u64 = 500;

/// The tasks of one connection.
#[derive(Clone, Default)]
pub(super) struct Board(Arc<Mutex<HashMap<String, Entry>>>);

struct Entry {
    owner: String,
    task: Task,
    cancel: CancellationToken,
}

impl Board {
    /// Puts a call of `owner` on the board; `None` if it is full.
    pub(super) fn begin(&self, owner: &str, cancel: CancellationToken, now: Timestamp) -> Option<Task> {
        let mut tasks = self.kept(now);
        if tasks.len() >= TASKS_MAX {
            return None;
        }
        let task = Task {
            id: Uuid::new_v4().to_string(),
            status: TaskStatus::Working,
            created_at: now,
            updated_at: now,
            ttl_ms: u64::try_from(KEPT.as_millis()).unwrap_or(u64::MAX),
            poll_interval_ms: POLL_INTERVAL_MS,
            result: None,
        };
        tasks.insert(task.id.clone(), Entry { owner: owner.to_owned(), task: task.clone(), cancel });
        Some(task)
    }

    /// Says what a task's call has answered.
    pub(super) fn end(&self, id: &str, result: String, now: Timestamp) {
        let mut tasks = self.kept(now);
        let Some(entry) = tasks.get_mut(id) else { return };
        entry.task.updated_at = now;
        // From its end on it is kept for the whole time.
        let lived = u64::try_from(now.ms_since(entry.task.created_at)).unwrap_or_default();
        entry.task.ttl_ms = entry.task.ttl_ms.saturating_add(lived);
        if entry.cancel.is_cancelled() {
            entry.task.status = TaskStatus::Cancelled;
        } else {
            entry.task.status = TaskStatus::Completed;
            entry.task.result = Some(result);
        }
    }

    /// Returns the tasks, without those that have been kept long enough.
    fn kept(&self, now: Timestamp) -> MutexGuard<'_, HashMap<String, Entry>> {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept_ms = i64::try_from(KEPT.as_millis()).unwrap_or(i64::MAX);
        tasks.retain(|_, entry| {
            entry.task.status == TaskStatus::Working || now.ms_since(entry.task.updated_at) < kept_ms
        });
        tasks
    }
}

impl Tasks for Board {
    fn look(&self, owner: &str, id: &str) -> Option<Task> {
        self.kept(Timestamp::now()).get(id).filter(|entry| entry.owner == owner).map(|entry| entry.task.clone())
    }

    fn cancel(&self, owner: &str, id: &str) -> bool {
        let tasks = self.kept(Timestamp::now());
        let Some(entry) = tasks.get(id).filter(|entry| entry.owner == owner) else { return false };
        // One that has ended is not changed by it.
        if entry.task.status == TaskStatus::Working {
            entry.cancel.cancel();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(board: &Board, owner: &str) -> Option<Task> {
        board.begin(owner, CancellationToken::new(), Timestamp::now())
    }

    #[test]
    fn a_task_is_there_for_its_owner_on_its_board_alone() {
        let board = Board::default();
        let task = begin(&board, "ann").unwrap();
        assert_eq!(board.look("ann", &task.id), Some(task.clone()));
        assert_eq!(board.look("bob", &task.id), None);
        assert!(!board.cancel("bob", &task.id));
        assert_eq!(Board::default().look("ann", &task.id), None);
        board.end(&task.id, "{}".to_owned(), Timestamp::now());
        let ended = board.look("ann", &task.id).unwrap();
        assert_eq!((ended.status, ended.result.as_deref()), (TaskStatus::Completed, Some("{}")));
        assert!(board.cancel("ann", &task.id), "it is there, and has ended");
        assert_eq!(board.look("ann", &task.id).unwrap().status, TaskStatus::Completed);
    }

    #[test]
    fn a_task_that_is_cancelled_has_no_result() {
        let board = Board::default();
        let task = begin(&board, "ann").unwrap();
        assert!(board.cancel("ann", &task.id));
        assert_eq!(board.look("ann", &task.id).unwrap().status, TaskStatus::Working, "until it has ended");
        board.end(&task.id, "{}".to_owned(), Timestamp::now());
        let ended = board.look("ann", &task.id).unwrap();
        assert_eq!((ended.status, ended.result), (TaskStatus::Cancelled, None));
    }

    #[test]
    fn a_board_has_so_many_places_and_what_has_ended_leaves_one_in_the_end() {
        let board = Board::default();
        let ids: Vec<String> = (0..TASKS_MAX).map(|_| begin(&board, "ann").unwrap().id).collect();
        assert_eq!(begin(&board, "ann"), None);
        let now = Timestamp::now();
        board.end(&ids[0], String::new(), now);
        let later = |after: Duration| board.begin("ann", CancellationToken::new(), now.plus(after));
        assert_eq!(later(KEPT - Duration::from_millis(1)), None);
        assert!(later(KEPT).is_some());
        assert_eq!(board.look("ann", &ids[0]), None, "it is forgotten");
    }
}
