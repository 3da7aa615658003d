//! Reads the answer to a question of a command. What the question is, and which answer confirms, is decided elsewhere.

use std::io::{self, BufRead};

use super::Failure;

/// The next line of the standard input, without white space around it. Empty at its end.
///
/// # Errors
/// When the standard input can't be read.
pub async fn answer() -> Result<String, Failure> {
    line_of(io::BufReader::new(io::stdin())).await
}

/// The next line of an input.
async fn line_of(mut input: impl BufRead + Send + 'static) -> Result<String, Failure> {
    let (send, answer) = tokio::sync::oneshot::channel();
    // A thread of its own, so that a signal ends the command while it waits for the answer.
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = send.send(input.read_line(&mut line).map(|_| line));
    });
    let line = answer.await.map_err(Failure::run)??;
    Ok(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::{io::Write, time::Duration};

    use super::*;

    #[tokio::test]
    async fn a_command_can_end_while_it_waits_for_an_answer() {
        let (asked, mut person) = io::pipe().unwrap();
        let mut waiting = Box::pin(line_of(io::BufReader::new(asked)));
        // A signal is another future of the same thread, so it is seen only if the wait does not block.
        tokio::time::timeout(Duration::from_millis(50), &mut waiting).await.expect_err("nobody has answered");
        person.write_all(b" yes \n").unwrap();
        assert_eq!(waiting.await.unwrap(), "yes");
    }

    #[tokio::test]
    async fn the_end_of_the_input_is_an_empty_answer() {
        assert_eq!(line_of(io::empty()).await.unwrap(), "");
    }
}
