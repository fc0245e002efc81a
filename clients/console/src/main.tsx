import "./ui/tokens.css";
import "./ui/base.css";
import { signal } from "@preact/signals";
import { render } from "preact";
import { ConsoleProvider, type Console } from "./app/context.ts";
import { KeyRing, storage } from "./app/key.ts";
import { Link, surroundings } from "./app/link.ts";
import { Notices } from "./app/notices.ts";
import { Feed } from "./app/feed.ts";
import { follow } from "./app/watching.ts";
import { Router } from "./app/routes.ts";
import { ThemeChoice } from "./app/theme.ts";
import { Shell } from "./app/shell.tsx";

const keys = new KeyRing(
  storage(() => sessionStorage),
  storage(() => localStorage),
);
const link = new Link(keys, surroundings());
const parts: Console = {
  link,
  feed: new Feed(link, follow),
  router: new Router(window),
  notices: new Notices(),
  theme: new ThemeChoice(
    document.documentElement,
    storage(() => localStorage),
  ),
  asked: signal(null),
  marked: signal<ReadonlySet<string>>(new Set()),
};
link.start();
parts.feed.start();
render(
  <ConsoleProvider value={parts}>
    <Shell />
  </ConsoleProvider>,
  document.getElementById("console")!,
);
