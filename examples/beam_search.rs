//! Completes words by beam search over a character model, in one graph that stops as soon as no
//! hypothesis can win any more.
//!
//! A beam holds the `width` most probable prefixes (Lowerre 1976; for networks Sutskever et al.
//! 2014, <https://arxiv.org/abs/1409.3215>). Scores are log probabilities, so a longer text never
//! has a better score: once the best complete word is at least as good as every open prefix, the
//! loop breaks. Lists keep the chosen letters and parents, and the word is read from them
//! backwards. A plain Rust search over the same model must find the same words and scores.
//!
//! `cargo run --release --example beam_search [beginning]..`
//!
//! The model counts which letter follows each three letters in the charters of
//! `examples/data/README.md`.

use anabranch::prelude::*;

/// 26 letters, and 0 for the positions before the first and after the last letter.
const LETTERS: usize = 27;
const END: i32 = 0;
/// The number of contexts: three letters encoded as one number.
const CONTEXTS: usize = LETTERS * LETTERS * LETTERS;
const LONGEST: i32 = 24;

/// Returns the most probable word that continues `context`, its log probability, the number of
/// steps, and the number of open hypotheses at the end. `table` has the log probability of each
/// letter after each context, `[CONTEXTS, LETTERS]`.
#[graph]
fn search(
    width: usize,
    table: Tensor<f64>,
    context: Tensor<i32>,
) -> (Tensor<i32>, Tensor<f64>, Tensor<i32>, Tensor<i32>) {
    // An empty slot of the beam has the score -inf. Initially one slot holds the empty word.
    let mut scores = (iota::<i32>(width) == 0).select(0.0, f64::NEG_INFINITY);
    let mut contexts = context.broadcast_to([width]);
    let (mut letters, mut parents) = (List::new([width]), List::new([width]));
    let (mut best, mut best_step, mut best_slot) = (scalar(f64::NEG_INFINITY), scalar(-1), scalar(0));
    let mut steps = scalar(0);
    while steps < LONGEST {
        // The best continuations, one after the other.
        let next = (scores.unsqueeze(-1) + table.take(contexts, 0)).flatten();
        let (mut chosen, mut rest) = (List::new(()), next);
        for _ in range(0..width as i32) {
            let i = rest.argmax(0);
            chosen.push(i);
            rest = (iota(width * LETTERS) == i).select(f64::NEG_INFINITY, rest);
        }
        let chosen = chosen.stack_exact(width);
        let (parent, letter) = (chosen / LETTERS as i32, chosen % LETTERS as i32);
        scores = next.take(chosen, 0);
        contexts = (contexts.take(parent, 0) * LETTERS as i32 + letter) % CONTEXTS as i32;
        letters.push(letter);
        parents.push(parent);

        // Complete words leave the beam.
        let complete = (letter == END).select(scores, f64::NEG_INFINITY);
        if complete.max() > best {
            (best, best_step, best_slot) = (complete.max(), steps, complete.argmax(0));
        }
        scores = (letter == END).select(f64::NEG_INFINITY, scores);
        steps += 1;
        if best >= scores.max() {
            break;
        }
    }
    let open = (scores > f64::NEG_INFINITY).cast().sum();
    let (mut word, mut slot) = (List::new(()), best_slot);
    for step in range(0..=best_step).rev() {
        word.push(letters.read(step).index(slot, 0));
        slot = parents.read(step).index(slot, 0);
    }
    (word.stack().flip(0), best, steps, open)
}

/// Searches in plain Rust: hypotheses are vectors, and all continuations are sorted.
fn search_in_rust(width: usize, table: &[f64], context: usize) -> (Vec<i32>, f64, i32) {
    let mut beam = vec![(Vec::new(), context, 0.0)];
    let mut best = (Vec::new(), f64::NEG_INFINITY);
    let mut steps = 0;
    while steps < LONGEST && beam.iter().any(|(_, _, score)| *score > best.1) {
        let mut next = Vec::new();
        for (word, context, score) in &beam {
            for letter in 0..LETTERS {
                let longer: Vec<i32> = word.iter().copied().chain([letter as i32]).collect();
                let score = score + table[context * LETTERS + letter];
                next.push((longer, (context * LETTERS + letter) % CONTEXTS, score));
            }
        }
        next.sort_by(|a, b| b.2.total_cmp(&a.2));
        next.truncate(width);
        for (word, _, score) in next.iter().filter(|(word, ..)| word.last() == Some(&END)) {
            if *score > best.1 {
                best = (word.clone(), *score);
            }
        }
        next.retain(|(word, ..)| word.last() != Some(&END));
        beam = next;
        steps += 1;
    }
    (best.0, best.1, steps)
}

fn codes(word: &str) -> impl Iterator<Item = usize> {
    word.bytes().filter(u8::is_ascii_alphabetic).map(|b| usize::from(b.to_ascii_lowercase() - b'a') + 1)
}

fn text(codes: &[i32]) -> String {
    codes.iter().filter(|&&c| c != END).map(|&c| char::from(b'a' + c as u8 - 1)).collect()
}

/// Returns the log probabilities of each letter after each three letters, from counts with additive
/// smoothing.
fn model(text: &str) -> Array<f64> {
    let mut counts = vec![1e-3; CONTEXTS * LETTERS];
    for word in text.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| word.len() > 2) {
        let mut context = 0;
        for code in codes(word).chain([END as usize]) {
            counts[context * LETTERS + code] += 1.0;
            context = (context * LETTERS + code) % CONTEXTS;
        }
    }
    let rows = counts.chunks_exact(LETTERS);
    let table = rows.flat_map(|row| row.iter().map(|n| (n / row.iter().sum::<f64>()).ln())).collect();
    Array::new([CONTEXTS, LETTERS], table)
}

fn main() -> anabranch::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let words = args.windows(2).filter(|pair| pair[0] != "--device").map(|pair| pair[1].clone());
    let given: Vec<String> = words.filter(|word| word.bytes().all(|b| b.is_ascii_alphabetic())).collect();
    let own = given.is_empty();
    let given = if own { ["", "ac", "con", "le", "pre", "th", "un"].map(str::to_owned).to_vec() } else { given };
    let table = model(include_str!("data/charters.txt"));
    let session = Session::from_args()?;
    println!("{:>10} {:>6}  {:<18} {:>8} {:>14} {:>6}", "beginning", "width", "word", "log p", "steps", "open");
    let mut improved = 0;
    for beginning in &given {
        let context = codes(beginning).fold(0, |context, code| (context * LETTERS + code) % CONTEXTS);
        let mut first = None;
        for width in [1, 4, 16] {
            let search = session.function(move |table, context| search(width, table, context))?;
            let (word, score, steps, open) = search.call((&table, context as i32))?;
            let (word, score, steps) = (word.to_vec(), score.item(), steps.item());
            println!(
                "{beginning:>10} {width:>6}  {:<18} {score:>8.4} {:>14} {open:>6}",
                format!("{beginning}{}", text(&word)),
                format!("{steps} of {LONGEST}")
            );
            assert_eq!((word, score, steps), search_in_rust(width, table.as_slice(), context), "another search");
            assert!(steps < LONGEST, "the search did not end early");
            improved += usize::from(score > *first.get_or_insert(score));
        }
    }
    // The default prefixes are chosen so that a narrow beam misses some words.
    assert!(!own || improved > 0, "no wider beam found a better word");
    println!("a wider beam found a more probable word {improved} times; all as in plain Rust");
    Ok(())
}
