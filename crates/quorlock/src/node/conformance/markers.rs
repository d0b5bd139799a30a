//! What a node shows of itself: its proof, its adoption, its marker.

use std::time::Duration;

use quorlock_core::info::Info;

use super::subject::Subject;
use super::{LIFE, LONG, STILL_LONG, acquire, inspect, millis, new_key, new_value, release};
use crate::node::{Adopted, Answer, Answers, Command, Evidence, Holding};

/// A node that can be restarted says what it is when it is greeted, wherever in a batch, and shows its
/// marker; one that keeps its promises by itself need not.
pub async fn a_node_that_is_greeted_proves_itself(subject: &Subject) {
    let key = new_key("greeted");
    for marker in [None, Some("a marker")] {
        if let Some(text) = marker {
            subject.outside.set(&subject.marker, text.as_bytes(), None);
        }
        let batch = vec![inspect(&key), Command::Identify, inspect(&key)];
        let Answers { answers, evidence } = subject.execute_and_prove(batch).await;
        let free = Answer::Seen(Holding::Free);
        assert_eq!(answers, [free.clone(), Answer::Identified, free]);
        if let Evidence::Seen { info, .. } = evidence {
            let info = info.expect("it was greeted").expect("it says what it is");
            let info = Info::parse(&info).expect("all that matters");
            assert!(!info.run_id.is_empty() && info.is_master && !info.is_loading);
        }
        // And of its own accord, whenever it is asked for a vote.
        let value = new_value();
        let batch = vec![acquire(&key, &value, LONG), release(&key, &value)];
        assert_eq!(subject.execute(batch).await, [Answer::Granted, Answer::Deleted]);
        assert_eq!(subject.ask(inspect(&key)).await, Answer::Seen(Holding::Free));
    }
    subject.outside.remove(&subject.marker);
}

/// `Adopt` writes what is not there, replaces what may be replaced, and tells what is there then and
/// for how long it has been.
pub async fn an_adoption_is_written_once_and_grows_old(subject: &Subject) {
    let (key, outside) = (new_key("adopt"), &subject.outside);
    let marker = new_key("marked");
    let ask = async |text: &str, replaces: Option<&str>, seen: Option<&str>| {
        let (replaces, seen) = (replaces.map(Into::into), seen.map(Into::into));
        let (key, text, marker) = (key.clone(), text.into(), marker.clone());
        subject.ask(Command::Adopt { key, text, replaces, marker, seen }).await
    };
    let adopt = async |text: &str, replaces: Option<&str>| match ask(text, replaces, None).await {
        Answer::Adopting { text, age } => (text.to_string(), age),
        other => panic!("an adoption was answered with {other:?}"),
    };
    // The node adds its time of day.
    let is = |written: &str, text: &str| {
        let since = written.strip_prefix(text).and_then(|rest| rest.strip_prefix(" since="));
        since.is_some_and(|since| since.parse::<u64>().is_ok())
    };
    let (young, old) = (Duration::from_secs(30), Duration::from_secs(3600));
    let (text, age) = adopt("first", None).await;
    assert!(is(&text, "first") && age < young, "{text}");
    assert!(outside.ttl(&key).is_some_and(|ttl| ttl + young > LIFE && ttl <= LIFE));
    outside.set(&key, b"first", Some(LIFE - old));
    for (text, replaces) in [("first", None), ("second", None), ("second", Some("third"))] {
        let (kept, age) = adopt(text, replaces).await;
        assert_eq!(kept, "first", "it is another's");
        assert!(age >= old && age < old + young, "{age:?}");
    }
    let (second, age) = adopt("second", Some("first")).await;
    assert!(is(&second, "second") && age < young, "what is new is young");
    outside.remove(&key);
    let (again, _) = adopt("second", None).await;
    assert!(is(&again, "second") && again != second, "no two are the same");
    // Without an expiry its age cannot be told: from now on it can.
    outside.set(&key, second.as_bytes(), None);
    let (text, age) = adopt("second", None).await;
    assert!(text == second && age < young);
    assert!(outside.ttl(&key).is_some_and(|ttl| ttl + young > LIFE && ttl <= LIFE));
    outside.remove(&key);
    // The marker that was seen is taken away; if there is another, nothing is written.
    outside.set(&marker, b"marked", None);
    for seen in [None, Some("another")] {
        assert_eq!(ask("third", None, seen).await, Answer::NotMarked, "{seen:?}");
        assert!(outside.exists(&marker) && !outside.exists(&key));
    }
    let adopted = ask("third", None, Some("marked")).await;
    assert!(matches!(adopted, Answer::Adopting { .. }), "{adopted:?}");
    assert!(!outside.exists(&marker) && outside.exists(&key));
    assert_eq!(ask("third", None, Some("marked")).await, Answer::NotMarked, "it is gone");
    outside.remove(&key);
}

/// `Mark` compares and writes in one step.
pub async fn a_marker_is_written_over_what_was_expected_alone(subject: &Subject) {
    let (key, outside) = (new_key("mark"), &subject.outside);
    let mark = async |text: &str, replaces: Option<&str>| {
        let (text, replaces) = (text.into(), replaces.map(Into::into));
        subject.ask(Command::Mark { key: key.clone(), text, replaces, adoption: None }).await
    };
    assert_eq!(mark("new", Some("old")).await, Answer::NotMarked);
    assert!(!outside.exists(&key));
    assert_eq!(mark("new", None).await, Answer::Marked);
    assert_eq!(outside.value(&key).as_deref(), Some(&b"new"[..]));
    assert_eq!(outside.ttl(&key), None, "it has no time to live");
    for replaces in [None, Some("old"), Some("")] {
        assert_eq!(mark("newer", replaces).await, Answer::NotMarked, "{replaces:?}");
    }
    assert_eq!(outside.value(&key).as_deref(), Some(&b"new"[..]));
    assert_eq!(mark("newer", Some("new")).await, Answer::Marked);
    assert_eq!(outside.value(&key).as_deref(), Some(&b"newer"[..]));
    outside.remove(&key);
}

/// `Mark` with an adoption: only if that is there, the same, and old enough; then it is gone.
pub async fn a_marker_waits_for_its_adoption(subject: &Subject) {
    let (key, other, outside) = (new_key("marker"), new_key("adoption"), &subject.outside);
    let mark = async || {
        let age_ms = millis(LONG);
        let adoption = Some(Adopted { key: other.clone(), text: "adopted".into(), age_ms });
        let (key, text) = (key.clone(), "marked".into());
        subject.ask(Command::Mark { key, text, replaces: None, adoption }).await
    };
    assert_eq!(mark().await, Answer::NotMarked, "there is none");
    for (text, ttl) in [
        ("adopted", Some(LIFE)),
        ("adopted", Some(LIFE - STILL_LONG)),
        ("adopted", None),
        ("another", Some(LIFE - 2 * LONG)),
    ] {
        outside.set(&other, text.as_bytes(), ttl);
        assert_eq!(mark().await, Answer::NotMarked, "{text}, {ttl:?}");
        assert_eq!(outside.value(&other).as_deref(), Some(text.as_bytes()));
    }
    assert!(!outside.exists(&key));
    outside.set(&other, b"adopted", Some(LIFE - 2 * LONG));
    outside.set(&key, b"there already", None);
    assert_eq!(mark().await, Answer::NotMarked);
    assert!(outside.exists(&other));
    outside.remove(&key);
    assert_eq!(mark().await, Answer::Marked);
    assert_eq!(outside.value(&key).as_deref(), Some(&b"marked"[..]));
    assert!(outside.ttl(&key).is_none() && !outside.exists(&other));
    outside.remove(&key);
}
