import { useLayoutEffect, useRef } from "preact/hooks";
import { Button } from "../ui/controls.tsx";
import { sampling } from "./sampling.tsx";
import { canRetry, isMissing, type Talk } from "./talk.ts";
import { RunningTurn, Turns, type TurnActions } from "./turns.tsx";
import type { Branch } from "./kin.ts";
import { many } from "../app/words.ts";

interface ColumnProps {
  readonly talk: Talk;
  /** The first turn that is shown: those before are shown elsewhere. */
  readonly from: number;
  readonly branches: readonly Branch[];
  readonly actions: TurnActions;
}

/** The turns of one conversation, the one that runs, and what went wrong. */
export function Column({ talk, from, branches, actions }: ColumnProps) {
  const conversation = talk.conversation.value;
  const asked = talk.asked.value;
  const end = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const length = (conversation?.turns.length ?? 0) + (asked?.text.length ?? 0);
  useLayoutEffect(() => {
    const scrolled = end.current?.closest(".chat-scroll");
    if (scrolled && isAtEnd.current) scrolled.scrollTop = scrolled.scrollHeight;
  }, [length, asked === null]);
  useLayoutEffect(() => {
    const scrolled = end.current?.closest(".chat-scroll");
    if (!scrolled) return undefined;
    const look = (): void => {
      isAtEnd.current = scrolled.scrollHeight - scrolled.scrollTop - scrolled.clientHeight < 48;
    };
    scrolled.addEventListener("scroll", look, { passive: true });
    return () => scrolled.removeEventListener("scroll", look);
  }, [conversation === null]);
  if (!conversation) {
    return (
      <div class="chat-column">
        <Trouble talk={talk} />
        {!talk.trouble.value && <p class="chat-wait faint">Reading {talk.ref}</p>}
      </div>
    );
  }
  const turns = conversation.turns.slice(from);
  return (
    <div class="chat-column">
      {from === 0 && conversation.hasMore && (
        <p class="chat-note">What came before is longer than is shown here, or not there any more.</p>
      )}
      <Turns
        label={`Conversation of ${talk.ref}`}
        turns={turns}
        branches={branches}
        name={talk.ref}
        actions={actions}
      >
        {asked && <RunningTurn asked={asked} />}
      </Turns>
      {!turns.length && !asked && <p class="chat-wait faint">Nothing more.</p>}
      <Trouble talk={talk} />
      <p class="unseen" role="status">
        {asked ? `${talk.name} is answering` : `${talk.name} has ${many(conversation.turns.length, "step")}`}
      </p>
      <div ref={end} />
    </div>
  );
}

/** What may be done with the end of a conversation. */
export function LastTurn({ talk }: { talk: Talk }) {
  const last = talk.conversation.value?.turns.at(-1);
  if (!last || talk.asked.value || talk.version !== null) return null;
  return (
    <>
      {last.isOpen && (
        <Button small kind="plain" onClick={() => void talk.send(null, sampling.value)}>
          Go on
        </Button>
      )}
      {canRetry(last, talk.name) && (
        <Button small kind="plain" onClick={() => void talk.retry(sampling.value)}>
          Try again
        </Button>
      )}
    </>
  );
}

function Trouble({ talk }: { talk: Talk }) {
  const trouble = talk.trouble.value;
  if (!trouble) return null;
  const { error, message, isReading } = trouble;
  const again = (): void => {
    if (isReading) void talk.read();
    else void talk.send(message, sampling.value);
  };
  return (
    <div class="alert chat-trouble" role="alert">
      <p>
        {isReading && isMissing(error)
          ? `There is no state ${talk.ref}, or none any more.`
          : `${isReading ? "It could not be read" : "There is no answer"}: ${error.message}`}
      </p>
      {message && <p class="soft clip">{message}</p>}
      <div class="bar">
        <Button small onClick={again}>
          Try again
        </Button>
        <Button small kind="plain" onClick={() => talk.dismiss()}>
          Dismiss
        </Button>
      </div>
    </div>
  );
}
