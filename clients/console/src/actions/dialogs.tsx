import type { FunctionComponent } from "preact";
import { useConsole } from "../app/context.ts";
import { CreateDialog, ExportDialog, ImportDialog } from "./create.tsx";
import type { ActionId } from "./list.ts";
import { CompareDialog, MigrateDialog, TagDialog } from "./more.tsx";
import { MutateDialog } from "./mutate.tsx";
import { useEffect } from "preact/hooks";
import { doAll, doOne } from "./do.ts";
import {
  DeleteDialog,
  ForkDialog,
  HibernateDialog,
  RenameDialog,
  RollbackDialog,
  several,
  SnapshotDialog,
  type DialogProps,
} from "./simple.tsx";
import "./dialogs.css";

const DIALOGS: Record<ActionId, FunctionComponent<DialogProps>> = {
  create: CreateDialog,
  import: ImportDialog,
  fork: ForkDialog,
  snapshot: SnapshotDialog,
  hibernate: HibernateDialog,
  resume: Resuming,
  mutate: MutateDialog,
  compare: CompareDialog,
  rollback: RollbackDialog,
  rename: RenameDialog,
  tag: TagDialog,
  export: ExportDialog,
  migrate: MigrateDialog,
  delete: DeleteDialog,
};

/** The dialog of the action that was asked for, if any. */
export function ActionDialog() {
  const { asked } = useConsole();
  if (!asked.value) return null;
  const { action, states } = asked.value;
  const Dialog = DIALOGS[action];
  return <Dialog states={states} onClose={() => (asked.value = null)} />;
}

/** Resuming asks nothing: it is done at once. */
function Resuming({ states, onClose }: DialogProps) {
  const all = useConsole();
  useEffect(() => {
    doAll(states, (state) => doOne(all, (call) => call.resume(state)))
      .then(() => all.notices.done(`Resumed ${several(states)}`))
      .catch((error: unknown) => all.notices.failed(`Resuming ${several(states)}`, error));
    onClose();
  }, []);
  return null;
}
