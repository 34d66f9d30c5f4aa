//! An actor and a learner, whose calls are cancelled at random, with checkpoints from which they
//! continue.

use crate::queues::{KINDS_OF_SESSIONS, numbers, rest, restored};
use crate::support::{Random, TestFolder, is_slow};
use anabranch::checkpoints::{Checkpoints, RunParts, StepRecord};
use anabranch::prelude::*;
use anabranch::{CallOptions, CancelHandle, Diagnostic, ErrorKind, Queue, Session};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::Duration;

type Outcome<T = ()> = Result<T, Diagnostic>;

/// How many results the learner takes between two checkpoints.
const EVERY: i64 = 50;

/// After how many checkpoints another session continues from the latest one.
const RESUME: i64 = 4;

/// Queues of capacity 1, and variables that both use.
struct Play {
    tasks: Queue<Tensor<i64>>,
    results: Queue<Tensor<i64>>,
    /// The next task, and the next result that the learner expects.
    next: Var<i64>,
    learned: Var<i64>,
    /// The learner changes it, and the actor reads it.
    weight: Var<i64>,
    acted: Var<i64>,
    /// The sum of the weights that the actor has read.
    weights: Var<i64>,
}

impl Play {
    fn new() -> Play {
        let names = ["next", "learned", "weight", "acted", "weights"];
        let [next, learned, weight, acted, weights] = names.map(|name| Var::<i64>::new(name, 0));
        Play { tasks: numbers(1), results: numbers(1), next, learned, weight, acted, weights }
    }

    fn vars(&self) -> [&Var<i64>; 5] {
        [&self.next, &self.learned, &self.weight, &self.acted, &self.weights]
    }

    fn parts<'a>(&self, vars: &'a [&Var<i64>; 5]) -> RunParts<'a> {
        RunParts::new().module("vars", vars).queue("tasks", &self.tasks).queue("results", &self.results)
    }

    fn ask(&self) {
        self.tasks.enqueue(self.next.get());
        self.next.set(self.next.get() + 1);
    }

    fn act(&self) {
        // If the learner changes the weight while this waits, it starts again.
        self.weights.set(self.weights.get() + self.weight.get());
        let task = self.tasks.dequeue();
        self.acted.set(self.acted.get() + 1);
        self.results.enqueue(task);
    }

    fn learn(&self) -> (Tensor<i64>, Tensor<i64>) {
        let (result, learned) = (self.results.dequeue(), self.learned.get());
        self.learned.set(learned + 1);
        self.weight.set(self.weight.get() + result);
        (result, learned)
    }
}

/// Calls of one side, which the other side may cancel.
#[derive(Default)]
struct Cancelled {
    handle: Mutex<CancelHandle>,
    has_ended: AtomicBool,
}

impl Cancelled {
    fn cancel(&self) {
        self.handle.lock().expect("no call panics").cancel();
    }

    /// Calls until it succeeds, some calls with a deadline. Returns `None` if all has ended before.
    fn call<T>(&self, random: &mut Random, call: impl Fn(&CallOptions) -> Outcome<T>) -> Outcome<Option<T>> {
        loop {
            let handle = CancelHandle::new();
            *self.handle.lock().expect("no call panics") = handle.clone();
            if self.has_ended.load(Ordering::SeqCst) {
                return Ok(None);
            }
            let options = CallOptions::new().cancelled_by(&handle);
            let options = match random.below(4) {
                0 => options.timeout(Duration::from_micros(random.below(500))),
                _ => options,
            };
            match call(&options) {
                Ok(value) => return Ok(Some(value)),
                Err(e) if matches!(e.kind, ErrorKind::Cancelled | ErrorKind::DeadlineExceeded) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        self.cancel();
    }
}

/// Ends calls when it is dropped, also in a panic.
struct EndOfCalls<'a>(&'a Cancelled);

impl Drop for EndOfCalls<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Plays in a session from where it is until a number of results were learned, and saves. Fails if
/// a result is not the next one.
fn play(session: &Session, play: &Play, folder: &Path, until: i64, random: &mut Random) -> Outcome {
    let vars = play.vars();
    let parts = play.parts(&vars);
    let mut checkpoints = Checkpoints::new(folder).keep_latest(1).open()?;
    checkpoints.resume(session, &parts)?;
    let (ask, act, learn) =
        (session.function(|| play.ask())?, session.function(|| play.act())?, session.function(|| play.learn())?);
    let (actor, learner) = (Cancelled::default(), Cancelled::default());
    let mut of_actor = Random::new(random.below(1 << 40));
    scope(|scope| {
        let acting = scope.spawn(|| {
            while actor.call(&mut of_actor, |options| act.call_with(options, ()))?.is_some() {
                if of_actor.below(16) == 0 {
                    learner.cancel();
                }
            }
            Ok::<(), Diagnostic>(())
        });
        let mut learning = || {
            let _end = EndOfCalls(&actor);
            let mut learned = session.get(&play.learned)?.item();
            while learned < until {
                // Without a task or a result on its way it would wait in vain. Two fit on it.
                while session.get(&play.next)?.item() < learned + 2 {
                    learner.call(random, |options| ask.call_with(options, ()))?.expect("the learner ends itself");
                }
                let next = learner.call(random, |options| learn.call_with(options, ()))?;
                let (result, number) = next.expect("the learner ends itself");
                assert_eq!((result.item(), number.item()), (learned, learned));
                learned += 1;
                if random.below(16) == 0 {
                    actor.cancel();
                }
                if learned % EVERY == 0 {
                    checkpoints.save(session, &parts, StepRecord::new(learned as u64))?;
                }
            }
            checkpoints.wait()
        };
        let learned = learning();
        learned.and(acting.join().expect("the actor does not panic"))
    })
}

#[test]
fn an_actor_and_a_learner_go_on_from_checkpoints_with_each_element_once() -> Outcome {
    for (i, new_session) in KINDS_OF_SESSIONS.into_iter().enumerate() {
        // The plan is the engine of the long run.
        let n = match (is_slow(), i) {
            (true, 1) => 100_000,
            (true, _) => 5_000,
            (false, _) => 400,
        };
        let (folder, mut random) = (TestFolder::new("actor"), Random::new(i as u64));
        let roles = Play::new();
        let vars = roles.vars();
        let mut session = new_session();
        let mut ends: Vec<i64> = (1..=n / (EVERY * RESUME)).map(|k| k * EVERY * RESUME).collect();
        // Some results are learned that no checkpoint has: they are learned again.
        ends.iter_mut().for_each(|end| *end += random.below(EVERY as u64) as i64);
        for until in ends {
            play(&session, &roles, &folder.path(""), until, &mut random)?;
            let copy = restored(&folder.path(""), &roles.parts(&vars))?;
            let [next, learned, _, acted, _] = vars.map(|var| copy.get(var).map(|n| n.item()));
            let (next, learned, acted) = (next?, learned?, acted?);
            assert_eq!(learned, until - until % EVERY);
            assert_eq!(rest(&copy.queue(&roles.results)?), (learned..acted).collect::<Vec<_>>());
            assert_eq!(rest(&copy.queue(&roles.tasks)?), (acted..next).collect::<Vec<_>>());
            // Every other time, all goes on where there is nothing yet.
            if until / (EVERY * RESUME) % 2 == 0 {
                session = new_session();
            }
        }
        let sum = |n: i64| n * (n - 1) / 2;
        assert_eq!(session.get(&roles.weight)?.item(), sum(session.get(&roles.learned)?.item()));
    }
    Ok(())
}
