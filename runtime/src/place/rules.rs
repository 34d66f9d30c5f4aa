//! Placement rules of a session, which assign variables to devices by name patterns, outside the
//! model.

use crate::device::Topology;
use anabranch_dsl::device::DevicePattern;
use anabranch_dsl::{Diagnostic, Result};
use std::collections::HashSet;

/// Placement rules in the order in which they were added.
///
/// **If several rules match a name, the last rule applies**, so add general rules first and their
/// exceptions later.
///
/// In a name pattern, `*` matches any characters, and `{i}` matches a number that the device may
/// refer to:
///
/// ```text
/// "model.embed.*"          "/cpu"
/// "model.cell.layer{i}.*"  "/gpu:{i}"
/// ```
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    list: Vec<Rule>,
    /// The devices of everything that no rule and no scope constrains.
    default: Option<DevicePattern>,
}

#[derive(Clone, Debug)]
struct Rule {
    names: String,
    pieces: Vec<PatternPiece>,
    device: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternPiece {
    Text(String),
    /// `*`.
    Any,
    /// `{i}`, with the word in braces.
    Number(String),
}

impl Rules {
    /// Returns an empty list of rules.
    pub(crate) fn new() -> Rules {
        Rules::default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.default.is_none()
    }

    /// Sets the devices of everything that no rule and no scope constrains.
    pub(crate) fn with_default(self, default: Option<DevicePattern>) -> Rules {
        Rules { default, ..self }
    }

    /// Returns the devices of everything that no rule and no scope constrains.
    pub(crate) fn default_device(&self) -> Option<DevicePattern> {
        self.default
    }

    /// Adds a rule, which takes precedence over earlier rules.
    ///
    /// # Errors
    /// Fails if the pattern has an unclosed brace or a repeated word, if the device is not a valid
    /// name, or if it uses a word that the pattern does not have.
    pub(crate) fn with(mut self, names: &str, device: &str) -> Result<Rules> {
        let wrong = |why: String| Diagnostic::new(format!("the rule {names:?} -> {device:?}: {why}"));
        let pieces = pieces(names)
            .map_err(|why| wrong(why).help("each number in a name has its own word, as in \"layer{l}.head{h}.*\""))?;
        let mut example = device.to_owned();
        for piece in &pieces {
            if let PatternPiece::Number(word) = piece {
                example = example.replace(&format!("{{{word}}}"), "0");
            }
        }
        if let Some((_, rest)) = example.split_once('{') {
            let word = rest.split('}').next().unwrap_or_default();
            let help = format!("a word in the device must appear in the pattern, as in \"layer{{{word}}}.*\"");
            return Err(wrong(format!("the pattern has no `{{{word}}}`")).help(help));
        }
        if let Err(mut error) = example.parse::<DevicePattern>() {
            error.message = wrong(error.message.clone()).message;
            return Err(error);
        }
        self.list.push(Rule { names: names.to_owned(), pieces, device: device.to_owned() });
        Ok(self)
    }

    /// Returns the device constraint for a variable of this name, with the text of the rule.
    ///
    /// # Errors
    /// Fails if a number in the name is too large for a device index.
    pub(crate) fn of(&self, name: &str) -> Result<Option<(DevicePattern, String)>> {
        for rule in self.list.iter().rev() {
            let mut numbers = Vec::new();
            if fits(&rule.pieces, name, &mut numbers, &mut HashSet::new()) {
                let mut device = rule.device.clone();
                for (word, number) in &numbers {
                    device = device.replace(&format!("{{{word}}}"), number);
                }
                let pattern = device.parse::<DevicePattern>().map_err(|mut error| {
                    error.message = format!("the rule {:?} on the variable `{name}`: {}", rule.names, error.message);
                    error
                })?;
                return Ok(Some((pattern, format!("the rule {:?} -> {:?}", rule.names, rule.device))));
            }
        }
        Ok(None)
    }

    /// Fails if the default or a rule whose device contains no word matches no device.
    pub(crate) fn check(&self, topology: &Topology) -> Result<()> {
        if let Some(default) = self.default.filter(|&default| topology.matching(&topology.absolute(default)).is_empty())
        {
            let message = format!("the session has no device {default}");
            return Err(Diagnostic::new(message).help(format!("available: {}", topology.names())));
        }
        for rule in &self.list {
            // A word in braces stands for any number, and a peer name that contains one for any
            // peer.
            let open = |part: &str| match part.split_once(':') {
                Some(("peer", name)) if name.contains('{') => String::new(),
                Some((what, name)) if name.contains('{') => format!("/{what}:*"),
                _ => format!("/{part}"),
            };
            let device: String = rule.device.split('/').skip(1).map(open).collect();
            let any_peer = rule.device.contains("/peer:") && !device.contains("/peer:");
            let absolute = |pattern| if any_peer { pattern } else { topology.absolute(pattern) };
            let pattern = device.parse::<DevicePattern>().map(absolute);
            if pattern.is_ok_and(|pattern| topology.matching(&pattern).is_empty()) {
                let message = format!("the rule {:?} -> {:?} matches no device", rule.names, rule.device);
                return Err(Diagnostic::new(message).help(format!("available: {}", topology.names())));
            }
        }
        Ok(())
    }
}

fn pieces(names: &str) -> Result<Vec<PatternPiece>, String> {
    let mut pieces = Vec::new();
    let mut rest = names;
    while !rest.is_empty() {
        let at = rest.find(['*', '{']).unwrap_or(rest.len());
        if at > 0 {
            pieces.push(PatternPiece::Text(rest[..at].to_owned()));
        }
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix('*') {
            pieces.push(PatternPiece::Any);
            rest = after;
        } else if let Some(after) = rest.strip_prefix('{') {
            let (word, after) = after.split_once('}').ok_or("unclosed `{`")?;
            if word.is_empty() || !word.chars().all(char::is_alphanumeric) {
                return Err(format!("`{{{word}}}` does not contain a word"));
            }
            let piece = PatternPiece::Number(word.to_owned());
            if pieces.contains(&piece) {
                return Err(format!("`{{{word}}}` appears twice"));
            }
            pieces.push(piece);
            rest = after;
        }
    }
    Ok(pieces)
}

/// Returns whether a name matches. Appends the matches of the words in braces to `numbers`.
///
/// `*` matches as little as possible, and a number all digits present. `failed` contains the
/// lengths of remaining pieces and names that do not match, so that no pair is tried twice.
fn fits(
    pieces: &[PatternPiece],
    name: &str,
    numbers: &mut Vec<(String, String)>,
    failed: &mut HashSet<(usize, usize)>,
) -> bool {
    let tried = (pieces.len(), name.len());
    let fits = !failed.contains(&tried) && fits_first(pieces, name, numbers, failed);
    if !fits {
        failed.insert(tried);
    }
    fits
}

fn fits_first(
    pieces: &[PatternPiece],
    name: &str,
    numbers: &mut Vec<(String, String)>,
    failed: &mut HashSet<(usize, usize)>,
) -> bool {
    match pieces.split_first() {
        None => name.is_empty(),
        Some((PatternPiece::Text(text), rest)) => {
            name.strip_prefix(text.as_str()).is_some_and(|n| fits(rest, n, numbers, failed))
        }
        Some((PatternPiece::Number(word), rest)) => {
            let n = name.bytes().take_while(u8::is_ascii_digit).count();
            if n == 0 {
                return false;
            }
            numbers.push((word.clone(), name[..n].to_owned()));
            let found = fits(rest, &name[n..], numbers, failed);
            if !found {
                numbers.pop();
            }
            found
        }
        Some((PatternPiece::Any, [])) => true,
        Some((PatternPiece::Any, rest)) => {
            let mut starts = name.char_indices().map(|(i, _)| i).chain([name.len()]);
            starts.any(|i| fits(rest, &name[i..], numbers, failed))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(list: &[(&str, &str)]) -> Rules {
        list.iter().fold(Rules::new(), |rules, (names, device)| rules.with(names, device).unwrap())
    }

    fn device(rules: &Rules, name: &str) -> Option<String> {
        rules.of(name).unwrap().map(|(p, _)| p.to_string())
    }

    #[test]
    fn the_last_rule_that_fits_decides() {
        let rules = rules(&[("*", "/cpu:0"), ("model.*", "/gpu"), ("model.embed.*", "/peer:a/cpu")]);
        assert_eq!(device(&rules, "model.embed.table").as_deref(), Some("/peer:a/cpu"));
        assert_eq!(device(&rules, "model.out.bias").as_deref(), Some("/gpu"));
        assert_eq!(device(&rules, "steps").as_deref(), Some("/cpu:0"));
        assert_eq!(device(&Rules::new(), "steps"), None);
        assert_eq!(rules.of("model.x").unwrap().unwrap().1, "the rule \"model.*\" -> \"/gpu\"");
    }

    #[test]
    fn many_stars_do_not_take_long() {
        let rules = rules(&[("*a*a*a*a*a*a*a*a*b", "/cpu:0")]);
        assert_eq!(device(&rules, &"a".repeat(200)), None);
        assert_eq!(device(&rules, &format!("{}b", "a".repeat(200))).as_deref(), Some("/cpu:0"));
    }

    #[test]
    fn a_rule_with_a_number_in_its_peer_is_looked_at_when_the_session_begins() {
        let rules = rules(&[("shard{p}", "/peer:node{p}/gpu:0")]);
        assert!(rules.check(&Topology::cpus(2)).unwrap_err().message.contains("matches no device"));
    }

    #[test]
    fn a_number_of_the_name_is_that_of_the_device() {
        let rules = rules(&[("*.layer{i}.*", "/gpu:{i}"), ("shard{p}of{n}", "/peer:node{p}/cpu:{n}")]);
        assert_eq!(device(&rules, "model.cell.layer12.w").as_deref(), Some("/gpu:12"));
        assert_eq!(device(&rules, "model.layerx.layer3.w").as_deref(), Some("/gpu:3"));
        assert_eq!(device(&rules, "model.layer.w"), None);
        assert_eq!(device(&rules, "shard4of7").as_deref(), Some("/peer:node4/cpu:7"));
        let error = rules.of("a.layer99999999999.w").unwrap_err();
        assert_eq!(
            error.message,
            "the rule \"*.layer{i}.*\" on the variable `a.layer99999999999.w`: \"/gpu:99999999999\" is not a valid \
             device name: `99999999999` is not the number of a device, such as 0, or `*`"
        );
    }

    #[test]
    fn a_rule_that_is_wrong_says_why() {
        for (names, to, why) in [
            ("a{i", "/cpu", "unclosed `{`"),
            ("a{}", "/cpu", "`{}` does not contain a word"),
            ("a{i}b{i}", "/cpu", "`{i}` appears twice"),
            ("a{i}", "/cpu:{j}", "the pattern has no `{j}`"),
            ("a", "cpu", "\"cpu\" is not a valid device name: it does not start with `/`"),
        ] {
            let error = Rules::new().with(names, to).expect_err(names);
            assert_eq!(error.message, format!("the rule {names:?} -> {to:?}: {why}"));
        }
        let error = rules(&[("a*", "/gpu")]).check(&Topology::cpus(2)).unwrap_err();
        assert_eq!(error.message, "the rule \"a*\" -> \"/gpu\" matches no device");
        assert_eq!(error.help.as_deref(), Some("available: /cpu:0, /cpu:1"));
    }
}
