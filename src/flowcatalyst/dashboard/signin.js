// Asks for what the router asks for: an API key, or a name and a password. They live as long as this tab.
import { signIn } from "./api.js";
import { html, useEffect, useRef, useState } from "./core.js";

const FIELDS = {
  key: [{ name: "key", label: "API key", type: "password", autocomplete: "off" }],
  password: [
    { name: "name", label: "Name", type: "text", autocomplete: "username" },
    { name: "password", label: "Password", type: "password", autocomplete: "current-password" },
  ],
};

export function SignIn({ asks }) {
  const first = useRef(null);
  const [values, setValues] = useState({ key: "", name: "", password: "" });
  const [state, setState] = useState({ busy: false, wrong: asks.why });
  useEffect(() => first.current?.focus(), []);
  const send = async (event) => {
    event.preventDefault();
    setState({ busy: true, wrong: "" });
    try {
      await signIn(asks.mode, values);
    } catch (error) {
      setState({ busy: false, wrong: error.message });
    }
  };
  return html`<main class="sign-in" id="main">
    <form onSubmit=${send}>
      <img src="/dashboard/icon.svg" alt="" width="36" height="36" />
      <h1>Sign in to FlowCatalyst</h1>
      <p>${asks.mode === "key" ? "This router asks for an API key." : "This router asks for a name and a password."} It is kept in this tab until you close it or sign out.</p>
      ${FIELDS[asks.mode].map((one, place) => html`<label key=${one.name}><span>${one.label}</span>
        <input ref=${place ? null : first} name=${one.name} type=${one.type} autocomplete=${one.autocomplete} required value=${values[one.name]} onInput=${(event) => setValues({ ...values, [one.name]: event.target.value })} /></label>`)}
      <p role="alert" class=${state.wrong ? "trouble" : "unseen"}>${state.wrong}</p>
      <button class="primary" type="submit" disabled=${state.busy}>${state.busy ? "Signing in …" : "Sign in"}</button>
    </form>
  </main>`;
}
