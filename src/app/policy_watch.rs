//! Sees that the policies are to be read again: by SIGHUP, because a file is another, or because a command asks.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::signal::unix::Signal;

use super::policies::Policies;
use super::policy_reload::{NotTaken, Reloader, Trigger};
use super::policy_source::Seen;
use super::servers::{Ask, Asked, Registration};
use crate::model::fault;
use crate::policy::{Counts, Holder, Reloaded};

/// How often it is looked whether the policy file or a component is another, or somebody asks. A file that is still being
/// written is not taken half: two looks have to agree.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Reloads the policies of a server whenever there is cause to.
pub(super) struct Watch {
    home: PathBuf,
    reloader: Reloader,
    registration: Arc<Mutex<Option<Registration>>>,
    /// What the last look saw, where that was not what was read last.
    changed: Option<Seen>,
    /// What is to be tried again, as it could not be recorded.
    again: Option<Trigger>,
    /// Whether it was said that others do not find this server.
    hidden: bool,
}

impl Watch {
    pub(super) fn new(home: PathBuf, reloader: Reloader, registration: Arc<Mutex<Option<Registration>>>) -> Self {
        Self { home, reloader, registration, changed: None, again: None, hidden: false }
    }

    /// Watches until the program ends.
    pub(super) async fn run(self, mut hangups: Signal) {
        // Files are read and code is compiled: nothing for a thread that others wait for.
        let registered = move || {
            let mut watch = self;
            watch.register(None);
            watch
        };
        let Ok(mut watch) = tokio::task::spawn_blocking(registered).await else { return };
        let Some(holder) = watch.reloader.policies.holder().await else { return };
        let mut asked = None;
        let of = Arc::clone(&holder);
        let loaded = tokio::task::spawn_blocking(move || {
            watch.register(Some(&of));
            watch
        });
        let Ok(mut watch) = loaded.await else { return };
        loop {
            let holder = Arc::clone(&holder);
            let looked = tokio::task::spawn_blocking(move || {
                watch.look(&holder, asked);
                watch
            });
            let Ok(looked) = looked.await else { return };
            watch = looked;
            asked = tokio::select! {
                () = tokio::time::sleep(fault::every(LOOK_EVERY)) => None,
                Some(()) = hangups.recv() => Some(Trigger::Signal),
            };
        }
    }

    fn look(&mut self, holder: &Holder, signalled: Option<Trigger>) {
        let questions = self.questions(holder);
        let reload = questions.iter().any(|asked| asked.ask == Ask::Reload).then_some(Trigger::Command);
        let trigger = signalled.or(reload).or(self.again).or_else(|| self.changed());
        let outcome = trigger.map(|trigger| self.reload(holder, trigger));
        if outcome.is_some() {
            self.register(Some(holder));
        }
        for asked in questions {
            let mut answer = standing(&self.reloader.policies, Some(holder));
            if let (Ask::Reload, Some(outcome), Some(object)) = (asked.ask, &outcome, answer.as_object_mut()) {
                let (taken, faults, weakened) = match outcome {
                    Ok(reloaded) => (true, Vec::new(), reloaded.weakened()),
                    Err(not_taken) => (false, not_taken.clone().lines(), Vec::new()),
                };
                object.insert("taken".to_owned(), json!(taken));
                object.insert("faults".to_owned(), json!(faults));
                object.insert("weakened".to_owned(), json!(weakened));
            }
            self.answer(&asked, &answer);
        }
    }

    fn reload(&mut self, holder: &Holder, trigger: Trigger) -> Result<Reloaded, NotTaken> {
        let outcome = self.reloader.reload(holder, trigger);
        self.changed = None;
        let again = self.again.take();
        if let Err(NotTaken::Unwritten(why)) = &outcome {
            if again.is_none() {
                tracing::error!("{why}");
            }
            self.again = Some(trigger);
        }
        // What changed while it was read is another than what was read last: the next looks see it.
        outcome
    }

    /// Returns whether the files are others than those that were read last, and rest.
    fn changed(&mut self) -> Option<Trigger> {
        let tried = self.reloader.policies.standing().tried;
        let now = tried.again();
        if now == tried {
            self.changed = None;
            return None;
        }
        let rests = self.changed.as_ref() == Some(&now);
        self.changed = Some(now);
        rests.then_some(Trigger::File)
    }

    /// Returns what other programs ask of this one.
    fn questions(&mut self, holder: &Holder) -> Vec<Asked> {
        let is_found = self.locked(|own| own.as_ref().is_some_and(Registration::is_found));
        if !is_found {
            self.register(Some(holder));
        }
        self.locked(|own| own.as_ref().map(Registration::asked).unwrap_or_default())
    }

    /// Lets other programs find this one, and says how its policies stand.
    fn register(&mut self, holder: Option<&Holder>) {
        let standing = standing(&self.reloader.policies, holder);
        let home = &self.home;
        let told = self.locked(|own| {
            if let Some(own) = own.as_ref().filter(|own| own.is_found()) {
                return own.tell(&standing);
            }
            *own = None;
            *own = Some(Registration::make(home, &standing)?);
            Ok(())
        });
        match told {
            Ok(()) => self.hidden = false,
            Err(error) if !self.hidden => {
                self.hidden = true;
                tracing::warn!(%error, "`pgsandbox policy reload` does not find this server; SIGHUP reaches it");
            }
            Err(_) => {}
        }
    }

    fn answer(&self, asked: &Asked, answer: &Value) {
        if let Some(Err(error)) = self.locked(|own| own.as_ref().map(|own| own.answer(asked, answer))) {
            tracing::warn!(%error, "a command that asks how the policies stand cannot be answered");
        }
    }

    fn locked<T>(&self, then: impl FnOnce(&mut Option<Registration>) -> T) -> T {
        then(&mut self.registration.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Says how the policies stand, for other programs. Without a holder they are not loaded yet.
fn standing(policies: &Policies, holder: Option<&Holder>) -> Value {
    let standing = policies.standing();
    let time = |time: Option<crate::model::Timestamp>| time.map(|time| time.to_string());
    let mut said = json!({"state": "loading", "file": policies.source.file()});
    let Some(object) = said.as_object_mut() else { return said };
    let mut put = |key: &str, value: Value| drop(object.insert(key.to_owned(), value));
    if let Some(fault) = holder.and_then(Holder::fault) {
        let faults: Vec<String> = fault.faults.iter().map(ToString::to_string).collect();
        put("state", json!("broken"));
        put("faults", json!(faults));
    } else if let Some(set) = holder.and_then(|holder| holder.current().ok()) {
        put("state", json!("serves"));
        put("generation", json!(set.generation().number));
        put("digest", json!(set.generation().digest));
        put("since", json!(time(standing.since)));
        put("fileTime", json!(time(standing.file_time)));
        let counts = set.counts();
        if !counts.is_empty() {
            put("candidates", Value::Array(counts.iter().map(counted).collect()));
        }
        if let Some(refused) = standing.refused {
            let refused =
                json!({"at": time(Some(refused.at)), "fileTime": time(refused.file_time), "faults": refused.faults});
            put("refused", refused);
        }
    }
    said
}

/// Says what a candidate came to.
fn counted(of: &Counts) -> Value {
    let differed: serde_json::Map<String, Value> =
        of.differed.iter().map(|(kind, count)| (kind.as_str().to_owned(), json!(count))).collect();
    json!({
        "policy": of.policy,
        "of": of.of,
        "asked": of.asked,
        "same": of.same,
        "different": of.asked.saturating_sub(of.same),
        "by": differed,
        "failed": of.failed,
    })
}
