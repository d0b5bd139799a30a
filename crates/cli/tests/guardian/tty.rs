//! A keeper on a terminal.

use std::io::{Read as _, Write as _};
use std::process::{Child as Process, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::{fs, thread};

use crate::run::Run;
use crate::src::guardian::clock::boot_ns;
use crate::{KEEPER_MARK, LOOK_AGAIN, PATIENCE, quoted, wait_for};

/// A keeper under script(1), which connects a terminal with two pipes.
pub(crate) struct Tty {
    pub(crate) run: Run,
    pub(crate) script: Process,
    pub(crate) screen: Arc<Mutex<String>>,
}

impl Tty {
    /// Runs `line` in a shell without job control. The command line of the keeper replaces the word KEEPER.
    pub(crate) fn new(command: &[&str], options: &[&str], line: &str) -> Self {
        let run = Run::new();
        let line = line.replace("KEEPER", &quoted(&run.words(options, command)));
        Self::script(run, &quoted(&["sh".into(), "-c".into(), line.into()]))
    }

    /// Types `line` into an interactive bash.
    pub(crate) fn interactive(command: &[&str], options: &[&str], line: &str) -> Self {
        let run = Run::new();
        // The keeper's long command line is in a script, because the terminal would wrap a long typed line.
        let words = quoted(&run.words(options, command));
        fs::write(run.path("k"), format!("exec {words}\n")).expect("a file");
        let line = line.replace("KEEPER", &format!("sh {}", run.path("k").display()));
        let mut tty = Self::script(run, "env PS1='$ ' bash --norc --noprofile -i");
        tty.shows("$ ");
        tty.types(&format!("{line}\n"));
        tty
    }

    pub(crate) fn script(run: Run, command: &str) -> Self {
        let mut script = Command::new("script")
            .args(["-qec", command, "/dev/null"])
            .env(KEEPER_MARK, &run.mark)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script(1) of util-linux");
        let mut output = script.stdout.take().expect("a pipe");
        let screen = Arc::new(Mutex::new(String::new()));
        let shown = Arc::clone(&screen);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..count]).replace('\r', "");
                shown.lock().expect("no panic").push_str(&text);
            }
        });
        Self { run, script, screen }
    }

    pub(crate) fn types(&mut self, keys: &str) {
        let stdin = self.script.stdin.as_mut().expect("a pipe");
        stdin.write_all(keys.as_bytes()).expect("script reads");
    }

    /// Presses Enter until `text` is on the screen, because a shell reports a background job only before a prompt.
    pub(crate) fn prompts_until(&mut self, text: &str, times: usize) {
        let prompts = |screen: String| screen.matches("$ ").count();
        let began = boot_ns();
        while self.screen().matches(text).count() < times {
            assert!(boot_ns() - began < PATIENCE, "no sign of {text}:\n{}", self.screen());
            let before = prompts(self.screen());
            self.types("\n");
            wait_for(text, || prompts(self.screen()) > before);
        }
    }

    pub(crate) fn screen(&self) -> String {
        self.screen.lock().expect("no panic").clone()
    }

    pub(crate) fn shows(&self, text: &str) {
        self.shows_times(text, 1);
    }

    pub(crate) fn shows_times(&self, text: &str, times: usize) {
        let shown = || self.screen().matches(text).count() >= times;
        let began = boot_ns();
        while !shown() {
            assert!(
                boot_ns() - began < PATIENCE,
                "{text:?} is not on the screen:\n{}\nlog:\n{}",
                self.screen(),
                self.run.log()
            );
            thread::sleep(LOOK_AGAIN);
        }
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        // Shell and keeper receive SIGHUP, because the terminal ends with script(1).
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}
