/**
 * What conversations are to be asked as soon as they are shown, by the names of their states: a
 * message, or null for the answer that the state is in. What is taken from here is asked once.
 */
export const toGoOn = new Map<string, string | null>();
