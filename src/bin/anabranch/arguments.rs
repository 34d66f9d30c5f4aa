//! The arguments of a command.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// Arguments that were not read yet. Options are read by name; the rest is positional.
pub(crate) struct CommandLine {
    left: VecDeque<String>,
    /// The arguments after `--`.
    program: Option<Vec<String>>,
}

/// Arguments that a command does not understand.
#[derive(Debug, PartialEq)]
pub(crate) struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn wrong<T>(what: String) -> Result<T, UsageError> {
    Err(UsageError(what))
}

impl CommandLine {
    pub(crate) fn new(given: impl Iterator<Item = String>) -> CommandLine {
        let mut left: VecDeque<String> = given.collect();
        let program = left.iter().position(|argument| argument == "--").map(|at| {
            let after = left.split_off(at);
            after.into_iter().skip(1).collect()
        });
        CommandLine { left, program }
    }

    /// Takes a flag. Returns whether it was given.
    pub(crate) fn has(&mut self, flag: &str) -> bool {
        let before = self.left.len();
        self.left.retain(|argument| argument != flag);
        self.left.len() < before
    }

    /// Takes the text of an option, the first if it was given several times.
    fn text(&mut self, option: &str) -> Result<Option<String>, UsageError> {
        let Some(at) = self.left.iter().position(|argument| argument == option) else { return Ok(None) };
        self.left.remove(at);
        match self.left.remove(at) {
            Some(text) if !text.starts_with("--") => Ok(Some(text)),
            _ => wrong(format!("`{option}` needs a value")),
        }
    }

    /// Takes an option that may be given several times.
    pub(crate) fn every<T>(&mut self, option: &str) -> Result<Vec<T>, UsageError>
    where
        T: FromStr,
        T::Err: fmt::Display,
    {
        let mut all = Vec::new();
        while let Some(text) = self.text(option)? {
            match text.parse() {
                Ok(value) => all.push(value),
                Err(error) => {
                    let error = T::Err::to_string(&error);
                    return wrong(format!("`{option} {text}`: {}", error.strip_prefix("error: ").unwrap_or(&error)));
                }
            }
        }
        Ok(all)
    }

    /// Takes an option that may be given once.
    pub(crate) fn option<T>(&mut self, option: &str) -> Result<Option<T>, UsageError>
    where
        T: FromStr,
        T::Err: fmt::Display,
    {
        let mut all = self.every(option)?;
        match all.len() {
            0 | 1 => Ok(all.pop()),
            _ => wrong(format!("`{option}` is given more than once")),
        }
    }

    /// Takes an option whose value may be left out. Returns `default` in that case.
    pub(crate) fn option_or<T: FromStr>(&mut self, option: &str, default: T) -> Option<T> {
        let at = self.left.iter().position(|argument| argument == option)?;
        self.left.remove(at);
        let value = self.left.get(at).and_then(|text| text.parse().ok());
        if value.is_some() {
            self.left.remove(at);
        }
        Some(value.unwrap_or(default))
    }

    /// Takes the first argument if it is not an option. Call it before options are read only if a
    /// positional argument comes first.
    pub(crate) fn positional(&mut self) -> Option<String> {
        self.left.pop_front_if(|argument| !argument.starts_with('-'))
    }

    /// Takes the program after `--`, with its arguments.
    pub(crate) fn program(&mut self) -> Option<Vec<String>> {
        self.program.take()
    }

    /// Returns an error if an argument was not read.
    pub(crate) fn end(self) -> Result<(), UsageError> {
        match (self.left.front(), self.program) {
            (Some(option), _) if option.starts_with('-') => wrong(format!("there is no option `{option}`")),
            (Some(other), _) => wrong(format!("`{other}` is not expected here")),
            (None, Some(_)) => wrong("`--` is not expected here".to_owned()),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CommandLine, UsageError};

    fn of(text: &str) -> CommandLine {
        CommandLine::new(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_are_read_in_any_order_and_what_is_left_is_an_error() {
        let mut given = of("--cpus 2 a --allow x --allow y -- b --cpus 3");
        assert_eq!(given.every::<String>("--allow"), Ok(vec!["x".to_owned(), "y".to_owned()]));
        assert_eq!(given.option::<u32>("--cpus"), Ok(Some(2)));
        assert_eq!(given.option::<u32>("--threads"), Ok(None));
        assert_eq!(given.program(), Some(vec!["b".to_owned(), "--cpus".to_owned(), "3".to_owned()]));
        assert_eq!(given.positional(), Some("a".to_owned()));
        assert_eq!(given.end(), Ok(()));
        assert_eq!(of("--ports 3").end(), Err(UsageError("there is no option `--ports`".to_owned())));
        assert_eq!(of("b").end(), Err(UsageError("`b` is not expected here".to_owned())));
    }

    #[test]
    fn errors_name_the_option() {
        let error = |text: &str| of(text).option::<u32>("--cpus").expect_err("the option is wrong").0;
        assert_eq!(error("--cpus"), "`--cpus` needs a value");
        assert_eq!(error("--cpus --threads 3"), "`--cpus` needs a value");
        assert_eq!(error("--cpus 1 --cpus 2"), "`--cpus` is given more than once");
        assert_eq!(error("--cpus two"), "`--cpus two`: invalid digit found in string");
    }

    #[test]
    fn a_value_can_be_left_out() {
        assert_eq!(of("--token 5 a").option_or("--token", 600), Some(5));
        assert_eq!(of("--token --cpus 5").option_or("--token", 600), Some(600));
        assert_eq!(of("--cpus 5").option_or("--token", 600), None);
    }
}
