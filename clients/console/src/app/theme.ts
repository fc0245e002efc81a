import { signal, type ReadonlySignal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const NAME = "wkvm.theme";
const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };

/** Light or dark: as the system says, until the user says otherwise. */
export class ThemeChoice {
  private readonly now = signal<Theme>("system");
  readonly theme: ReadonlySignal<Theme> = this.now;

  constructor(
    private readonly root: HTMLElement,
    private readonly kept: Storage | null,
  ) {
    const before = kept?.getItem(NAME);
    this.set(before === "light" || before === "dark" ? before : "system");
  }

  next(): void {
    this.set(NEXT[this.now.peek()]);
    this.kept?.setItem(NAME, this.now.peek());
  }

  private set(theme: Theme): void {
    this.now.value = theme;
    if (theme === "system") delete this.root.dataset["theme"];
    else this.root.dataset["theme"] = theme;
  }
}
