import { Fragment } from "preact";
import { ACTIONS } from "../actions/list.ts";
import { Dialog } from "../ui/controls.tsx";
import { KEYS } from "./keyboard.ts";

/** All keys, and what they do. */
export function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl class="facts help">
        {KEYS.map(([key, says]) => (
          <Fragment key={key}>
            <dt class="mono">{key}</dt>
            <dd>{says}</dd>
          </Fragment>
        ))}
        {ACTIONS.map(({ key, title, says }) => (
          <Fragment key={key}>
            <dt class="mono">{key}</dt>
            <dd>
              {title}: {says}
            </dd>
          </Fragment>
        ))}
      </dl>
    </Dialog>
  );
}
